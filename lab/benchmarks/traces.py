"""Traces of a stream as seen on the wire, and a classifier that reads them.

The classifier is k-NN (Cover and Hart, IEEE Trans. Information Theory 13, 1967) on sizes, gaps or
sums of a trace. The choice of these and of k is made by leave-one-out on the training traces, as an
attacker would.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LONGEST = 256
"""Number of writes of a trace that are considered."""
NEIGHBOURS = (1, 3, 7)


@dataclass
class Trace:
    """Writes of one stream: HTTP chunks as they arrived."""

    sizes: list[int] = field(default_factory=list)
    """Bytes of each write."""
    times: list[float] = field(default_factory=list)
    """Seconds from the request to each write."""
    bare_sizes: list[int] = field(default_factory=list)
    """Bytes of each write without comments, which wrong filling would reveal."""
    content_s: float = 0.0
    """Seconds to the frame with the finish reason."""

    @property
    def gaps(self) -> list[float]:
        return np.diff(self.times).tolist() if len(self.times) > 1 else []


class TraceClient(asyncio.Protocol):
    """Connection that records every chunk of one answer."""

    def __init__(self) -> None:
        self.finish: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.trace = Trace()
        self._buffer, self._in_body = b"", False
        self._send_time = 0.0

    def send(self, request: bytes) -> None:
        self._send_time = time.perf_counter()
        self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter() - self._send_time
        self._buffer += data
        if not self._in_body:
            head, separator, remainder = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._fail(f"the server answered {head[:200]!r}")
                return
            self._buffer, self._in_body = remainder, True
        while self._read_chunk(now):
            pass

    def _read_chunk(self, now: float) -> bool:
        length, separator, remainder = self._buffer.partition(b"\r\n")
        if not separator or len(remainder) < (size := int(length, 16)) + 2:
            return False
        chunk, self._buffer = remainder[:size], remainder[size + 2 :]
        if not size:
            if not self.finish.done():
                self.finish.set_result(None)
            return False
        trace = self.trace
        trace.sizes.append(size)
        trace.times.append(now)
        trace.bare_sizes.append(sum(len(line) for line in chunk.split(b"\n") if line[:1] != b":"))
        if b'"finish_reason":"' in chunk:
            trace.content_s = now
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self._fail("the server closed the connection")

    def _fail(self, text: str) -> None:
        if not self.finish.done():
            self.finish.set_exception(RuntimeError(text))


async def record(port: int, request: bytes) -> Trace:
    """Record one stream on its own connection.

    Raises RuntimeError for anything but a complete answer with status 200.
    """
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(TraceClient, "127.0.0.1", port)
    client.send(request)
    try:
        await client.finish
    finally:
        transport.close()
    return client.trace


def pad(values: Sequence[float]) -> list[float]:
    return [*values[:LONGEST], *[0.0] * (LONGEST - len(values))]


VIEWS: dict[str, Callable[[Trace], list[float]]] = {
    "sizes": lambda trace: pad(trace.sizes),
    "gaps": lambda trace: pad(trace.gaps),
    "sums": lambda trace: [len(trace.sizes), sum(trace.sizes), sum(trace.gaps)],
    "sizes and gaps": lambda trace: pad(trace.sizes) + pad(trace.gaps),
    "bytes by time": lambda trace: _bytes_by_time(trace.sizes, trace.times),
}
BARE_VIEWS: dict[str, Callable[[Trace], list[float]]] = {
    "bare sizes": lambda trace: pad(trace.bare_sizes),
    "bare sums": lambda trace: [len(trace.bare_sizes), sum(trace.bare_sizes)],
}
"""Views of a stream without its filling."""


def _bytes_by_time(sizes: Sequence[int], times: Sequence[float]) -> list[float]:
    """Return the bytes in each of 64 slots of 10 ms after the first write."""
    slots = [0.0] * 64
    for size, time_s in zip(sizes, times, strict=True):
        slots[min(63, int((time_s - times[0]) * 100))] += size
    return slots


@dataclass(frozen=True, slots=True)
class Guess:
    """Result of an attack: the share of test traces named correctly."""

    accuracy: float
    num_tests: int
    view: str
    neighbours: int


def attack(
    examples: Sequence[tuple[int, Trace]],
    tests: Sequence[tuple[int, Trace]],
    views: dict[str, Callable[[Trace], list[float]]] = VIEWS,
) -> Guess:
    """Learn the label of traces from ``examples``, and name those of ``tests``."""
    labels = np.array([label for label, _ in examples])
    guesses: list[tuple[float, str, int]] = []
    for name, view in views.items():
        rows = np.array([view(trace) for _, trace in examples], dtype=np.float64)
        distances = _distances(rows, rows)
        np.fill_diagonal(distances, np.inf)
        guesses += [
            (float(np.mean(_vote(distances, labels, k) == labels)), name, k) for k in NEIGHBOURS
        ]
    _, name, k = max(guesses, key=lambda guess: guess[0])
    training_rows, test_rows = (
        np.array([views[name](trace) for _, trace in rows], dtype=np.float64)
        for rows in (examples, tests)
    )
    truth = np.array([label for label, _ in tests])
    answers = _vote(_distances(test_rows, training_rows), labels, k)
    return Guess(float(np.mean(answers == truth)), len(truth), name, k)


def _distances(rows: Floats, base: Floats) -> Floats:
    """Return distances in units of each column's standard deviation in ``base``."""
    spread = base.std(axis=0)
    scaled_groups = [
        (group - base.mean(axis=0)) / np.where(spread > 0, spread, 1) for group in (rows, base)
    ]
    squares = [np.sum(group**2, axis=1) for group in scaled_groups]
    distances = (
        squares[0][:, None] + squares[1][None, :] - 2 * scaled_groups[0] @ scaled_groups[1].T
    )
    return np.asarray(np.maximum(distances, 0), dtype=np.float64)


def _vote(distances: Floats, labels: NDArray[np.int_], k: int) -> NDArray[np.int_]:
    """Return the most frequent label of the k nearest; in a tie, the nearest's."""
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    labels_of_rows = []
    for row in labels[order]:
        counts = np.bincount(row)
        labels_of_rows.append(next(label for label in row if counts[label] == counts.max()))
    return np.array(labels_of_rows)


def area_under_curve(positives: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability that a positive is below a negative, ties half (Mann and Whitney,
    1947).
    """
    low, high = np.array(positives)[:, None], np.array(others)[None, :]
    return float(np.mean((low < high) + 0.5 * (low == high)))
