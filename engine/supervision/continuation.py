"""Continuation of one request on a new engine without a gap in its steps.

There are three ways. *Rerun*: nothing was delivered, so the request runs again unchanged. *Resume*:
the delivered tokens alone determine the rest, so they become part of the prompt; a seed's noise
depends on the position in the whole sequence and so continues unchanged. *Replay*: something else
matters as well (a grammar's state, the counts of a penalty), so the request runs from the start,
and delivered tokens are checked and skipped. A sampled request can only be replayed with a seed, so
it gets one if it has none.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from msgspec.structs import replace

from eaglegate.engine.supervision.policy import RecoveryOutcome
from eaglegate.engine.types import DecodeStep, EngineRequest, Sampling, Step, UndraftedReason


class ReplayDiverged(Exception):
    """A replay produced other tokens than those delivered before."""


class Continuation:
    """Record of the delivered part of ``request``: submit ``next_request()``, pass on
    ``take(step)``.

    ``accounts`` means that the engine reports decode steps. A token that a resumed request gets
    from its second prefill then needs a decode step as well: a step of the target without a draft.
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
        """True if every token was delivered and only the finish was lost."""
        return len(self._delivered) >= self._request.sampling.max_tokens

    def next_request(self) -> EngineRequest:
        """Return the request to submit to the next engine."""
        outcome = self.outcome
        self._replayed = 0 if outcome is RecoveryOutcome.REPLAYED else None
        self._resuming = outcome is RecoveryOutcome.RESUMED
        return self._build_resume() if self._resuming else self._build_replay()

    def take(self, step: Step) -> Step | None:
        """Return the new part of ``step``, or None if nothing is new. Raises ReplayDiverged."""
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
        steps, self._skipped = self._skipped, []
        return steps

    def _build_replay(self) -> EngineRequest:
        if not self._delivered:
            return self._request
        sampling = replace(self._request.sampling, prompt_logprobs=None)
        return replace(self._request, sampling=sampling)

    def _build_resume(self) -> EngineRequest:
        sampling, num_delivered = self._request.sampling, len(self._delivered)
        expanded_length = self._request.expanded_length
        return replace(
            self._request,
            prompt=(*self._request.prompt, *self._delivered),
            expanded_length=expanded_length + num_delivered if expanded_length else 0,
            sampling=replace(
                sampling,
                max_tokens=sampling.max_tokens - num_delivered,
                min_tokens=max(0, sampling.min_tokens - num_delivered),
                prompt_logprobs=None,
            ),
        )

    def _resume_step(self, step: Step) -> Step:
        """Return a step after a resume. The prefill token of the first one is a decode step of this
        request."""
        if not step.token_ids:
            return replace(step, cached_tokens=None, recomputed_tokens=None)
        self._resuming = False
        num_prefilled = min(1, _count_prefilled(step))
        decode = (*self._make_plain(num_prefilled), *step.decode) if self._accounts else step.decode
        return replace(step, decode=decode, cached_tokens=None, recomputed_tokens=None)

    def _make_plain(self, tokens: int) -> Iterator[DecodeStep]:
        reason = UndraftedReason.OFF if self._request.depth == 0 else UndraftedReason.REFUSED
        for _ in range(tokens):
            yield DecodeStep(0, 0, 1, undrafted=reason)

    def _skip_delivered(self, step: Step) -> Step:
        """Return ``step`` without the tokens that an earlier engine delivered.

        An account of the whole answer that arrives at its end stays whole, because the earlier
        engine never sent one.
        """
        assert self._replayed is not None
        delivered_ids = self._delivered[self._replayed :][: len(step.token_ids)]
        count = len(delivered_ids)
        self._replayed += count
        ends_early = step.finish is not None and self._replayed < len(self._delivered)
        if list(step.token_ids[:count]) != delivered_ids or ends_early:
            raise ReplayDiverged
        if self._replayed == len(self._delivered):
            self._replayed = None
        decode = step.decode if _count_prefilled(step) < 0 else tuple(skip_tokens(step, count))
        self._skipped.extend(step.decode[: len(step.decode) - len(decode)])
        return Step(
            step.token_ids[count:],
            decode=decode,
            logprobs=step.logprobs[count:],
            finish=step.finish,
            stop_token=step.stop_token,
        )


def is_resumable(request: EngineRequest) -> bool:
    """Return True if the rest depends only on the seed and the tokens so far."""
    return request.constraint is None and not _is_penalised(request.sampling)


def skip_tokens(step: Step, tokens: int) -> Iterator[DecodeStep]:
    """Yield the decode steps of ``step`` without its first ``tokens`` tokens.

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
    num_drafted = step.drafted - tokens
    return replace(
        step,
        drafted=num_drafted,
        accepted=step.accepted - tokens,
        delivered=step.delivered - tokens,
        undrafted=None if num_drafted else UndraftedReason.REFUSED,
    )


def _count_prefilled(step: Step) -> int:
    """Count the tokens of ``step`` that no decode step accounts for."""
    return len(step.token_ids) - sum(decode.delivered for decode in step.decode)


def _is_penalised(sampling: Sampling) -> bool:
    """Return True if a rule counts output tokens only, so that delivered tokens must not become
    prompt."""
    budget = sampling.thinking_token_budget is not None
    has_penalty = sampling.presence_penalty or sampling.frequency_penalty
    return bool(has_penalty or sampling.bad_words or budget or sampling.repetition)


def _make_repeatable(request: EngineRequest) -> EngineRequest:
    sampling = request.sampling
    is_sampled = sampling.temperature > 0 and sampling.seed is None
    if not is_sampled or is_resumable(request):
        return request
    return replace(request, sampling=replace(sampling, seed=secrets.randbits(31)))
