"""Traces of a choice's engine steps, for requests with ``return_steps``.

A trace shows which step produced each token, whether the token was a draft and at which position,
and how long each step took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from time import perf_counter

from eaglegate.engine.events import StepKind, StepsDelta, TracedStep
from eaglegate.engine.speculation.accounts.accounting import trim_decode
from eaglegate.engine.types import DecodeStep, Step, StepTrace


class StepTracer:
    """Traces the steps of one choice as they arrive.

    With ``late``, the engine accounts for an answer only in its last step, so ``trace`` returns
    nothing until then. If the engine reports no times, a step ends when it reaches the gateway. Of
    several steps that arrive together, the first gets the whole time.
    """

    def __init__(self, late: bool = False) -> None:
        self._late = late
        self._num_steps = 0
        self._backlog: list[tuple[float, tuple[int, ...]]] = []
        """Arrival times and tokens of the steps of a ``late`` engine."""
        self._seen = perf_counter()
        """The gateway's clock at the last step."""
        self._engine_clock: float | None = None
        """The engine's clock at the last step."""

    def trace(self, step: Step, num_kept: int, *, ended: bool) -> StepsDelta | None:
        """Trace ``step``, whose first ``num_kept`` tokens reach the client. Return None if there is
        nothing to report yet.
        """
        now = perf_counter()
        tokens = step.token_ids[:num_kept]
        if self._late:
            self._backlog.append((now, tokens))
            return self._trace_held(step) if ended else None
        cut = len(step.token_ids) - num_kept
        decode = trim_decode(step.decode, cut) if cut else step.decode
        steps = tuple(self._split(tokens, decode, step.traces, now))
        return StepsDelta(steps) if steps else None

    def _split(
        self,
        tokens: tuple[int, ...],
        decode: Sequence[DecodeStep],
        traces: Sequence[StepTrace],
        now: float,
    ) -> Iterator[TracedStep]:
        """Split the tokens of an engine output into its steps.

        Tokens before those of ``decode`` come from prefill.
        """
        num_undecoded = len(tokens) - sum([part.delivered for part in decode])
        accounts: list[DecodeStep | None] = [None] if num_undecoded > 0 else []
        accounts += decode
        sizes = [num_undecoded if part is None else part.delivered for part in accounts]
        ends = list(accumulate(sizes))
        has_traces = len(traces) == len(accounts)
        for index, (account, end, size) in enumerate(zip(accounts, ends, sizes, strict=True)):
            trace = traces[index] if has_traces else None
            yield self._make(account, tokens[end - size : end], trace, now)

    def _make(
        self,
        account: DecodeStep | None,
        tokens: tuple[int, ...],
        trace: StepTrace | None,
        now: float,
    ) -> TracedStep:
        index, self._num_steps = self._num_steps, self._num_steps + 1
        return TracedStep(
            index=index,
            kind=_classify(account, index, len(tokens)),
            token_ids=tokens,
            seconds=self._measure(trace, now),
            account=account,
            drafts=() if trace is None else trace.drafts,
            rates=() if trace is None else trace.rates,
            token_price=0.0 if trace is None else trace.token_price,
        )

    def _measure(self, trace: StepTrace | None, now: float) -> float:
        """Return the seconds since the previous step, by the engine's clock if it timed both
        steps.
        """
        previous, self._engine_clock = self._engine_clock, None if trace is None else trace.at
        previous_time, self._seen = self._seen, now
        if trace is None or previous is None:
            return now - previous_time
        return max(0.0, trace.at - previous)

    def _trace_held(self, last_step: Step) -> StepsDelta | None:
        """Trace a whole answer, whose account arrived with its last step."""
        tokens = tuple(chain.from_iterable(part for _, part in self._backlog))
        arrivals = [arrival for arrival, part in self._backlog for _ in part]
        surplus = sum([part.delivered for part in last_step.decode]) - len(tokens)
        decode = trim_decode(last_step.decode, max(0, surplus))
        steps = [*self._split(tokens, decode, (), self._seen)]
        start, end, timed_steps = self._seen, 0, []
        for step in steps:
            end += len(step.token_ids)
            arrival_time = arrivals[end - 1]
            timed_steps.append(
                TracedStep(
                    step.index, step.kind, step.token_ids, arrival_time - start, step.account, ()
                )
            )
            start = arrival_time
        return StepsDelta(tuple(timed_steps)) if timed_steps else None


def _classify(account: DecodeStep | None, index: int, num_tokens: int) -> StepKind:
    if account is not None:
        return StepKind.VERIFY if account.drafted else StepKind.PLAIN
    return StepKind.PREFILL if index == 0 and num_tokens == 1 else StepKind.UNKNOWN
