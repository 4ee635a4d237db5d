"""Speculation accounting for a worker's answers: decode steps from its metrics, and its counters.

vLLM reports what its verify steps drafted and accepted with the last chunk of an answer, in order
(``--per-request-spec-decode-metrics detailed``) or as a histogram (``summary``). It does not report
where steps without a draft were, nor which part of the last step was cut. The first follows
from the chunk sizes, one chunk per engine step unless vLLM merged some; the second from what is
left over. D, P and A + cut are the worker's own numbers in every case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import lt
from typing import Any

from engine.remote.reading import WorkerProtocolError, read_integer, read_integers, read_object
from engine.speculation.accounting import Totals, intern_step
from engine.types import DecodeStep, UndraftedReason

MOST_DEPTH = 256
SPARE = 16
"""Steps beyond one per token: vLLM pads some prompts with one."""
VerifiedStep = tuple[int, int]
"""Of one step: drafted, accepted."""


@dataclass(frozen=True, slots=True)
class SpeculationAccount:
    """The speculation metrics of one answer, as the worker reported them."""

    depth: int
    """K, as configured in the worker."""
    steps: tuple[VerifiedStep, ...]

    @classmethod
    def read(cls, value: Any, most: int) -> SpeculationAccount:
        """From vLLM's ``metrics.speculative_decoding`` of an answer of at most ``most`` tokens.

        Raises WorkerProtocolError.
        """
        metrics, most = read_object(value, "speculative_decoding"), most + SPARE
        depth = read_integer(metrics.get("num_spec_tokens"), "num_spec_tokens", 0, MOST_DEPTH)
        if metrics.get("per_step_drafted") is None or metrics.get("per_step_accepted") is None:
            return cls(depth, _read_histogram(metrics, depth, most))
        drafted = read_integers(metrics["per_step_drafted"], "per_step_drafted", 0, depth + 1, most)
        accepted = read_integers(
            metrics["per_step_accepted"], "per_step_accepted", 0, depth + 1, most
        )
        if len(drafted) != len(accepted) or any(map(lt, drafted, accepted)):
            raise WorkerProtocolError("per_step_accepted does not fit per_step_drafted")
        return cls(depth, tuple(zip(drafted, accepted, strict=True)))


def _read_histogram(metrics: Mapping[str, Any], depth: int, most: int) -> tuple[VerifiedStep, ...]:
    """Steps with the histogram's accepted counts; all drafted tokens are spread over them."""
    counts = read_integers(metrics.get("acceptance_histogram"), "histogram", 0, most + 1, depth + 1)
    if sum(counts) > most:
        raise WorkerProtocolError(
            f"the histogram has {sum(counts)} steps for at most {most} tokens"
        )
    accepted = [at for at, count in enumerate(counts) for _ in range(count)]
    drafted = read_integer(
        metrics.get("num_draft_tokens"), "num_draft_tokens", 0, depth * len(accepted)
    )
    return tuple(_spread_drafts(accepted, depth, drafted - sum(accepted)))


def _spread_drafts(accepted: Sequence[int], depth: int, rejected: int) -> Iterator[VerifiedStep]:
    for reached in accepted:
        share = max(0, min(depth - reached, rejected))
        rejected -= share
        yield reached + share, reached


def lay_decode_steps(
    sizes: Sequence[int],
    account: SpeculationAccount,
    reason: UndraftedReason = UndraftedReason.REFUSED,
) -> tuple[DecodeStep, ...]:
    """The decode steps of chunks of these sizes; ``reason`` for those without a draft."""
    if not sizes:
        return ()
    if not _is_padded(sizes, account.steps):
        sizes = [sizes[0] - 1, *sizes[1:]]
    return tuple(_StepLayout(list(sizes), list(account.steps), reason).lay())


def _is_padded(sizes: Sequence[int], steps: Sequence[VerifiedStep]) -> bool:
    """Whether the first token came from a verify step, too.

    vLLM's own scheduler pads a prompt of which all but one token is cached with empty drafts, and
    counts them.
    """
    return (
        len(steps) == len(sizes)
        and steps[0][1] == 0
        and all(size == step[1] + 1 for size, step in zip(sizes[:-1], steps, strict=False))
        and sizes[-1] <= steps[-1][1] + 1
    )


class _StepLayout:
    """Lays steps over chunks. Chunks hold whole steps; the last step may be truncated."""

    def __init__(
        self, sizes: list[int], steps: list[VerifiedStep], reason: UndraftedReason
    ) -> None:
        self._sizes = sizes
        self._steps = steps
        self._reason = reason
        explained = sum(accepted + 1 for _, accepted in steps)
        chunks = sum(1 for size in sizes if size)
        self._plain = max(0, sum(sizes) - explained, chunks - len(steps))
        """Steps without a draft that are not placed yet."""

    def lay(self) -> Iterator[DecodeStep]:
        room = 0
        for at, size in enumerate(self._sizes):
            room += size
            last = at == len(self._sizes) - 1
            while room > 0 and (step := self._next_step(room, last)) is not None:
                room -= step.delivered
                yield step
        yield from (self._make_step(step, 0) for step in self._steps)

    def _next_step(self, room: int, last: bool) -> DecodeStep | None:
        """The next step; None when it reaches into the next chunk."""
        if self._steps and (self._steps[0][1] < room or (last and not self._plain)):
            return self._make_step(self._steps.pop(0), room)
        if self._plain or last:
            self._plain -= 1
            return intern_step(0, 0, 1, 0, self._reason)
        return None

    def _make_step(self, step: VerifiedStep, room: int) -> DecodeStep:
        drafted, reached = step
        delivered = min(reached + 1, room)
        if not drafted:
            return intern_step(0, 0, delivered, 0, self._reason)
        accepted = min(reached, delivered)
        return intern_step(drafted, accepted, delivered, reached - accepted, None)


SAMPLE = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)"
    r"(?:_total)?(?:\{(.{0,2000})\})? (\S{1,32})$",
    re.MULTILINE,
)
POSITION = re.compile(r'position="(\d{1,4})"')
MOST_POSITIONS = 64


def parse_totals(exposition: str) -> Totals | None:
    """Sums over the worker's engines; None without speculation. Raises WorkerProtocolError."""
    sums: Counter[str] = Counter()
    positions: Counter[int] = Counter()
    for name, labels, value in SAMPLE.findall(exposition):
        if name == "accepted_tokens_per_pos":
            position = POSITION.search(labels)
            if position is not None and int(position[1]) < MOST_POSITIONS:
                positions[int(position[1])] += _read_count(value)
        else:
            sums[name] += _read_count(value)
    if "drafts" not in sums:
        return None
    return Totals(
        verify_steps=sums["drafts"],
        proposed=sums["draft_tokens"],
        accepted=sums["accepted_tokens"],
        accepted_at=tuple(positions[at] for at in range(max(positions, default=-1) + 1)),
    )


def _read_count(value: str) -> int:
    """Raises WorkerProtocolError."""
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        raise WorkerProtocolError(f"a counter of the worker is {value}") from None
