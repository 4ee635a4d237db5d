"""Continuation: how one request continues on a new engine without a gap in its steps.

There are three ways. *Rerun*: nothing was delivered, so it runs again unchanged. *Resume*: the
delivered tokens alone determine what follows, so they become part of the prompt; a seed's noise
depends on the position in the whole sequence, so it goes on as it would have. *Replay*: something
else matters, too (a grammar's state, the counts behind a penalty), so it runs from the start;
delivered tokens are checked and skipped. A sampled request of that kind is repeatable by a seed:
where it brings none, it is given one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from msgspec.structs import replace

from eaglegate.engine.supervision.policy import RecoveryOutcome
from eaglegate.engine.types import DecodeStep, EngineRequest, Sampling, Step, UndraftedReason


class ReplayDiverged(Exception):
    """A replay differs from what was delivered."""


class Continuation:
    """Tracks what was delivered of ``request``: submit ``next_request()``, pass on ``take(step)``.

    ``accounts``: the engine reports decode steps, so a token that a resumed request gets from its
    second prefill needs one, too: a step of the target without a draft.
    """

    def __init__(self, request: EngineRequest, *, accounts: bool = True) -> None:
        self._request = _make_repeatable(request)
        self._accounts = accounts
        self._delivered: list[int] = []
        self._replayed: int | None = None
        """Delivered tokens generated again on this engine; None when not replaying."""
        self._resuming = False
        self._skipped: list[DecodeStep] = []

    @property
    def outcome(self) -> RecoveryOutcome:
        """Return how the next engine will continue the request."""
        if not self._delivered:
            return RecoveryOutcome.RERUN
        resumes = is_resumable(self._request)
        return RecoveryOutcome.RESUMED if resumes else RecoveryOutcome.REPLAYED

    @property
    def is_complete(self) -> bool:
        """Every token was delivered; only the finish was lost."""
        return len(self._delivered) >= self._request.sampling.max_tokens

    def next_request(self) -> EngineRequest:
        """The request to submit to the next engine."""
        outcome = self.outcome
        self._replayed = 0 if outcome is RecoveryOutcome.REPLAYED else None
        self._resuming = outcome is RecoveryOutcome.RESUMED
        return self._build_resume() if self._resuming else self._build_replay()

    def take(self, step: Step) -> Step | None:
        """The part of ``step`` that is new, None without any. Raises ReplayDiverged."""
        if self._replayed is not None:
            step = self._skip_delivered(step)
        elif self._resuming:
            step = self._resume_step(step)
        if not step.token_ids and step.finish is None and step.prompt_logprobs is None:
            return None
        self._delivered += step.token_ids
        return step

    def pop_skipped(self) -> list[DecodeStep]:
        """Return and forget the decode steps whose tokens had been delivered before."""
        skipped, self._skipped = self._skipped, []
        return skipped

    def _build_replay(self) -> EngineRequest:
        if not self._delivered:
            return self._request
        sampling = replace(self._request.sampling, prompt_logprobs=None)
        return replace(self._request, sampling=sampling)

    def _build_resume(self) -> EngineRequest:
        sampling, done = self._request.sampling, len(self._delivered)
        return replace(
            self._request,
            prompt=(*self._request.prompt, *self._delivered),
            sampling=replace(
                sampling,
                max_tokens=sampling.max_tokens - done,
                min_tokens=max(0, sampling.min_tokens - done),
                prompt_logprobs=None,
            ),
        )

    def _resume_step(self, step: Step) -> Step:
        """The first step after a resume: its prefill token is a decode step of this request."""
        if not step.token_ids:
            return replace(step, cached_tokens=None, recomputed_tokens=None)
        self._resuming = False
        prefilled = min(1, _count_prefilled(step))
        decode = (*self._make_plain(prefilled), *step.decode) if self._accounts else step.decode
        return replace(step, decode=decode, cached_tokens=None, recomputed_tokens=None)

    def _make_plain(self, tokens: int) -> Iterator[DecodeStep]:
        reason = UndraftedReason.OFF if self._request.depth == 0 else UndraftedReason.REFUSED
        for _ in range(tokens):
            yield DecodeStep(0, 0, 1, undrafted=reason)

    def _skip_delivered(self, step: Step) -> Step:
        """``step`` without the tokens that an earlier engine delivered.

        An account of the whole answer that comes at its end stays whole: the earlier engine never
        sent one.
        """
        assert self._replayed is not None
        expected = self._delivered[self._replayed :][: len(step.token_ids)]
        again = len(expected)
        self._replayed += again
        early = step.finish is not None and self._replayed < len(self._delivered)
        if list(step.token_ids[:again]) != expected or early:
            raise ReplayDiverged
        if self._replayed == len(self._delivered):
            self._replayed = None
        new = step.decode if _count_prefilled(step) < 0 else tuple(skip_tokens(step, again))
        self._skipped.extend(step.decode[: len(step.decode) - len(new)])
        return Step(
            step.token_ids[again:],
            decode=new,
            logprobs=step.logprobs[again:],
            finish=step.finish,
            stop_token=step.stop_token,
        )


def is_resumable(request: EngineRequest) -> bool:
    """Whether the rest depends on nothing but the seed and the tokens so far."""
    return request.constraint is None and not _is_penalised(request.sampling)


def skip_tokens(step: Step, tokens: int) -> Iterator[DecodeStep]:
    """The decode steps of ``step`` without its first ``tokens`` tokens.

    A decode step that is split keeps the accepted drafts of its second part.
    """
    tokens -= min(tokens, _count_prefilled(step))
    for decode in step.decode:
        if tokens >= decode.delivered:
            tokens -= decode.delivered
            continue
        yield _drop_head(decode, tokens)
        tokens = 0


def _drop_head(step: DecodeStep, tokens: int) -> DecodeStep:
    if not tokens:
        return step
    drafted = step.drafted - tokens
    return replace(
        step,
        drafted=drafted,
        accepted=step.accepted - tokens,
        delivered=step.delivered - tokens,
        undrafted=None if drafted else UndraftedReason.REFUSED,
    )


def _count_prefilled(step: Step) -> int:
    """Tokens of ``step`` that no decode step record_step."""
    return len(step.token_ids) - sum(decode.delivered for decode in step.decode)


def _is_penalised(sampling: Sampling) -> bool:
    """vLLM applies these to the output alone, so delivered tokens must not become prompt."""
    budget = sampling.thinking_token_budget is not None
    penalised = sampling.presence_penalty or sampling.frequency_penalty
    return bool(penalised or sampling.bad_words or budget or sampling.repetition)


def _make_repeatable(request: EngineRequest) -> EngineRequest:
    sampling = request.sampling
    sampled = sampling.temperature > 0 and sampling.seed is None
    if not sampled or is_resumable(request):
        return request
    return replace(request, sampling=replace(sampling, seed=secrets.randbits(31)))
