"""How one request goes on in a new engine, so that its steps join up with those it had.

Three ways. Nothing delivered: run it again. Delivered tokens determine what follows: *resume*, the
delivered tokens become part of the prompt. Something else does, too (a grammar's state, the counts
behind a penalty, the state of a seeded generator): *replay*, run it from the start, check that the
delivered tokens come again, and leave them out. Replay needs a sampler that repeats itself, so a
request that will need it and samples without a seed is given one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

from engine.errors import EngineDead
from engine.supervision.policy import RecoveryOutcome
from engine.types import DecodeStep, EngineRequest, Sampling, Step, UndraftedReason


class ReplayDiverged(Exception):
    """A replay came out otherwise than what had been delivered."""


class Continuation:
    """What was delivered of ``request``; ``next_request`` is what to submit, ``take`` what to pass on.

    ``accounts``: the engine reports decode steps, so a token that a resumed request gets from its
    second prefill needs an account, too. It advanced on the target's plain path.
    """

    def __init__(self, request: EngineRequest, *, accounts: bool = True) -> None:
        self._request = _repeatable(request)
        self._accounts = accounts
        self._delivered: list[int] = []
        self._replayed: int | None = None
        """Delivered tokens that have come again in this life; None when not replaying."""
        self._rejoining = False
        self._may_replay = True
        self._left_out: list[DecodeStep] = []

    @property
    def outcome(self) -> RecoveryOutcome:
        """How the next life will take it up."""
        if not self._delivered:
            return RecoveryOutcome.RERUN
        replays = self._may_replay and not is_resumable(self._request)
        return RecoveryOutcome.REPLAYED if replays else RecoveryOutcome.RESUMED

    @property
    def is_complete(self) -> bool:
        """Every token was delivered; only the end was lost."""
        return len(self._delivered) >= self._request.sampling.max_tokens

    def next_request(self) -> EngineRequest:
        """What to submit to the engine at hand."""
        way = self.outcome
        self._replayed = 0 if way is RecoveryOutcome.REPLAYED else None
        self._rejoining = way is RecoveryOutcome.RESUMED
        return self._behind_delivered() if self._rejoining else self._from_the_start()

    def take(self, step: Step) -> Step | None:
        """The part of ``step`` that is new, None without any. Raises ReplayDiverged."""
        if self._replayed is not None:
            step = self._leave_out(step)
        elif self._rejoining:
            step = self._rejoin(step)
        if not step.token_ids and step.finish is None and step.prompt_logprobs is None:
            return None
        self._delivered.extend(step.token_ids)
        return step

    def pop_skipped(self) -> list[DecodeStep]:
        """The decode steps whose tokens had been delivered before; once."""
        left_out, self._left_out = self._left_out, []
        return left_out

    def handle_divergence(self) -> None:
        """Go on behind what was delivered, if nothing but a seed stood against it.

        Raises EngineDead where that would break a promise.
        """
        if self._request.constraint is not None or _penalised(self._request.sampling):
            raise EngineDead("The engine died, and the answer could not be continued.")
        self._may_replay = False

    def _from_the_start(self) -> EngineRequest:
        if not self._delivered:
            return self._request
        sampling = replace(self._request.sampling, prompt_logprobs=None)
        return replace(self._request, sampling=sampling)

    def _behind_delivered(self) -> EngineRequest:
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

    def _rejoin(self, step: Step) -> Step:
        """The first step of a resumed life: its prefill token is a decode step of this request."""
        if not step.token_ids:
            return replace(step, cached_tokens=None)
        self._rejoining = False
        prefilled = min(1, _prefilled(step))
        decode = (*self._plain(prefilled), *step.decode) if self._accounts else step.decode
        return replace(step, decode=decode, cached_tokens=None)

    def _plain(self, tokens: int) -> Iterator[DecodeStep]:
        reason = UndraftedReason.OFF if self._request.depth == 0 else UndraftedReason.REFUSED
        for _ in range(tokens):
            yield DecodeStep(0, 0, 1, undrafted=reason)

    def _leave_out(self, step: Step) -> Step:
        """``step`` without the tokens that were delivered in an earlier life.

        An account that comes for the whole answer at its end stays whole: the earlier life's never
        came.
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
        new = step.decode if _prefilled(step) < 0 else tuple(skip_tokens(step, again))
        self._left_out.extend(step.decode[: len(step.decode) - len(new)])
        return Step(
            step.token_ids[again:],
            decode=new,
            logprobs=step.logprobs[again:],
            finish=step.finish,
            stop_token=step.stop_token,
        )


def is_resumable(request: EngineRequest) -> bool:
    """Whether the tokens so far are all that the rest depends on."""
    sampling = request.sampling
    seeded = sampling.seed is not None and sampling.temperature > 0
    return request.constraint is None and not _penalised(sampling) and not seeded


def is_seeded(request: EngineRequest) -> bool:
    """Whether its text follows from a seed: one that was given, or one for the sake of replays."""
    sampling = request.sampling
    return sampling.temperature > 0 and (sampling.seed is not None or not is_resumable(request))


def skip_tokens(step: Step, tokens: int) -> Iterator[DecodeStep]:
    """The accounts of ``step`` without those of its first ``tokens`` tokens.

    A step cut in two keeps, of its accepted drafts, those behind the cut.
    """
    tokens -= min(tokens, _prefilled(step))
    for decode in step.decode:
        if tokens >= decode.delivered:
            tokens -= decode.delivered
            continue
        yield _tail(decode, tokens)
        tokens = 0


def _tail(step: DecodeStep, tokens: int) -> DecodeStep:
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


def _prefilled(step: Step) -> int:
    """Tokens of ``step`` that no decode step record_step."""
    return len(step.token_ids) - sum(decode.delivered for decode in step.decode)


def _penalised(sampling: Sampling) -> bool:
    """vLLM counts these over the output alone, so delivered tokens must not become prompt."""
    budget = sampling.thinking_token_budget is not None
    penalised = sampling.presence_penalty or sampling.frequency_penalty
    return bool(penalised or sampling.bad_words or budget or sampling.repetition)


def _repeatable(request: EngineRequest) -> EngineRequest:
    sampling = request.sampling
    sampled = sampling.temperature > 0 and sampling.seed is None
    if not sampled or is_resumable(request):
        return request
    return replace(request, sampling=replace(sampling, seed=secrets.randbits(31)))
