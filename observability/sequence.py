"""Timeline of one choice: its steps, and the phase of each step's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import add, attrgetter, sub

from msgspec.structs import replace

from eaglegate.engine.events import Event, Finish, Usage
from eaglegate.engine.speculation.accounts.accounting import spread_account, sum_steps, trim_decode
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import DecodeStep, EngineRequest, Step
from eaglegate.text.events import (
    ContentDelta,
    Outcome,
    Phase,
    ReasoningDelta,
    Repair,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

MonotonicClock = Callable[[], float]

_PHASES: dict[type, Phase] = {
    ReasoningDelta: Phase.REASONING,
    ContentDelta: Phase.CONTENT,
    ToolCallStart: Phase.TOOL_CALL,
    ToolCallDelta: Phase.TOOL_CALL,
    ToolCallEnd: Phase.TOOL_CALL,
}
TRACKED = 2048
"""Number of a choice's engine steps that are kept for its explanation."""
_DECODE = attrgetter("decode")
_TOKEN_IDS = attrgetter("token_ids")
_DELIVERED = attrgetter("delivered")


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """Share of one phase in a sequence. ``timed_tokens`` / ``seconds`` is its speed.

    ``seconds`` is the time of its steps, ``timed_tokens`` the tokens generated in that time: all
    but the first of the sequence.
    """

    totals: Totals = field(default_factory=Totals)
    tokens: int = 0
    timed_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: PhaseShare) -> PhaseShare:
        return PhaseShare(*map(add, _SHARES(self), _SHARES(other)))


_SHARES = attrgetter(*PhaseShare.__slots__)


class SequenceTimeline:
    """Record of the steps of ``InstrumentedEngine`` and the server's events, in one task.

    A step belongs to the phase of the first event after it, because a parser may hold text back and
    the first tokens of a tool call make no event. ``add_step`` and ``add_event`` run for every step
    of every stream, so they only store their argument; ``settle`` evaluates it. ``settle`` leaves
    the newest step for later, because a stop may still remove tokens from it. With ``late``, the
    engine accounts for an answer at its end, and nothing is settled before.
    """

    __slots__ = (
        "_account",
        "_clock",
        "_kind",
        "_late",
        "_seen",
        "_start",
        "_steps",
        "_times",
        "_turns",
        "finish",
        "first_at",
        "interruptions",
        "last_at",
        "log",
        "preemptions",
        "queued_s",
        "repairs",
        "request",
        "settled_tokens",
        "tools",
        "track",
        "usage",
    )

    def __init__(self, clock: MonotonicClock, late: bool = False) -> None:
        self._clock = clock
        self._late = late
        self._steps: list[Step] = []
        self._times: list[float] = []
        self._turns: list[tuple[int, Phase]] = [(0, Phase.CONTENT)]
        """First step of each phase, as (step, phase). The last phase continues."""
        self._seen = 0
        """Number of steps before the last event. Their phase is certain."""
        self._kind: type | None = None
        self._account: Totals | None = None
        """Account of the whole sequence, once the server has added it up."""
        self._start: float | None = None
        """Time of the last settled step."""
        self.track: list[tuple[float, tuple[DecodeStep, ...]]] = []
        """Times and accounts of the first ``TRACKED`` settled steps of the engine."""
        self.interruptions: list[tuple[float, str]] = []
        """Losses of the engine during this sequence, as (time, outcome)."""
        self.queued_s: float | None = None
        self.preemptions = 0
        self.first_at: float | None = None
        self.last_at = 0.0
        self.settled_tokens = 0
        self.tools: list[Outcome] = []
        self.repairs: list[Repair] = []
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.log: list[tuple[Phase, list[Step]]] | None = None
        """Every settled step by phase, for captured requests."""
        self.request: EngineRequest | None = None
        """The engine request, once it runs, for captured requests."""

    def add_step(self, step: Step) -> None:
        if self.queued_s is None:  # later ones come from engines that continue the answer
            self.queued_s = step.queued_s
        if step.finish is not None:
            self.preemptions = step.preemptions
        if step.logprobs:
            step = replace(step, logprobs=())
        self._steps.append(step)
        self._times.append(self._clock())

    def add_event(self, event: Event) -> None:
        kind = type(event)
        if kind is not self._kind and self._change_phase(kind, event):
            return
        self._seen = len(self._steps)

    def _change_phase(self, kind: type, event: Event) -> bool:
        """Handle an event of another kind than the last one. Return True if the event shows no
        tokens."""
        if isinstance(event, Finish):
            self._finish(event)
        elif isinstance(event, ToolCallEnd):
            self.tools.append(event.outcome)
            self.repairs.extend(event.repairs)
        phase = _PHASES.get(kind)
        if phase is None:
            return True
        self._kind = None if kind is ToolCallEnd else kind
        if phase is not self._turns[-1][1]:
            self._turns.append((self._seen, phase))
        return False

    def _finish(self, event: Finish) -> None:
        surplus = self.tokens - event.usage.completion
        if surplus > 0 and self._steps:
            self._steps[-1] = _trim_tokens(self._steps[-1], surplus)
        self.usage = event.usage
        self.finish = event.reason
        self._account = event.totals

    @property
    def tokens(self) -> int:
        """Tokens delivered so far."""
        return self.settled_tokens + _count_tokens(self._steps)

    @property
    def tpot(self) -> float | None:
        """(end - first token) / (N - 1), in seconds; None for N < 2. Read it after settling."""
        if self.first_at is None or self.settled_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.settled_tokens - 1)

    def settle(self, *, ended: bool = False) -> tuple[dict[Phase, PhaseShare], list[float]]:
        """Settle the certain steps since the last call, or all steps if ``ended``.

        Returns the share of each phase, and the seconds between the steps.
        """
        count = len(self._steps) if ended else min(self._seen, len(self._steps) - 1)
        if count <= 0 or (self._late and not ended):
            return {}, []
        if self._late:
            self._steps = spread_account(self._steps)
        times = self._times[:count]
        is_new = self._start is None
        previous_time = times[0] if self._start is None else self._start
        gaps = list(map(sub, times, (previous_time, *times)))
        first = self._find_first(times)
        shares: dict[Phase, PhaseShare] = {}
        for start, stop, phase in self._split_by_phase(count):
            steps = self._steps[start:stop]
            account = self._account if is_new and ended and len(steps) == count else None
            num_untimed = int(start <= first < stop)
            totals = account or _sum_totals(steps, num_untimed if self._late else None)
            tokens = _count_tokens(steps)
            share = PhaseShare(totals, tokens, tokens - num_untimed, sum(gaps[start:stop]))
            shares[phase] = shares[phase] + share if phase in shares else share
            if self.log is not None:
                self.log.append((phase, steps))
        if len(self.track) < TRACKED:
            self.track += zip(times, map(_DECODE, self._steps[:count]), strict=True)
        self._drop(count, sum(share.tokens for share in shares.values()))
        return shares, gaps[1:] if is_new else gaps

    def _find_first(self, times: list[float]) -> int:
        """Return the index of the step with the sequence's first token; -1 if none of these has
        it."""
        if self.first_at is None:
            for index, time in enumerate(times):
                if self._steps[index].token_ids:
                    self.first_at = time
                    return index
        return -1

    def _split_by_phase(self, count: int) -> Iterator[tuple[int, int, Phase]]:
        """Yield (start, stop, phase) for runs of steps of one phase, up to ``count``."""
        ends = [*[start for start, _ in self._turns[1:]], count]
        for (start, phase), stop in zip(self._turns, ends, strict=True):
            if start < min(stop, count):
                yield start, min(stop, count), phase

    def _drop(self, count: int, tokens: int) -> None:
        self._start = self.last_at = self._times[count - 1]
        self.settled_tokens += tokens
        del self._steps[:count], self._times[:count]
        self._seen = max(0, self._seen - count)
        if len(self._turns) == 1:
            return
        last_phase = [turn for turn in self._turns if turn[0] <= count][-1][1]
        later_turns = [
            (step_index - count, phase) for step_index, phase in self._turns if step_index > count
        ]
        self._turns = [(0, last_phase), *later_turns]


def _count_tokens(steps: list[Step]) -> int:
    return sum(map(len, map(_TOKEN_IDS, steps)))


def _sum_totals(steps: list[Step], num_prefilled: int | None = None) -> Totals:
    """Sum the steps. ``num_prefilled`` is the number of tokens from prefill, if the steps do not
    determine it."""
    decode = list(chain.from_iterable(map(_DECODE, steps)))
    num_undecoded = _count_tokens(steps) - sum(map(_DELIVERED, decode))
    return sum_steps(
        decode,
        first_tokens=num_undecoded,
        requests=num_undecoded if num_prefilled is None else num_prefilled,
    )


def _trim_tokens(step: Step, surplus: int) -> Step:
    """Return ``step`` without its last ``surplus`` tokens, or without any if it has fewer."""
    token_ids = step.token_ids[: max(0, len(step.token_ids) - surplus)]
    return replace(step, token_ids=token_ids, decode=trim_decode(step.decode, surplus))
