"""The attack on sizes and gaps: it reads recorded step patterns, and a paced stream shows none."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from eaglegate.engine.scripted import Pause, steps
from eaglegate.features.pacing.cadence import BLOCK, Cadence
from eaglegate.lab.benchmarks.client import write_post
from eaglegate.lab.benchmarks.traces import Trace, area_under_curve, attack, record
from eaglegate.server.http.response import StreamTiming
from tests.server.conftest import Lab, on_a_port

PATTERNS = ((4, 1, 1, 4, 2, 1, 4), (1, 2, 1, 1, 3, 1, 1, 2), (2, 2, 2, 2, 2, 2), (1,) * 12)
"""Tokens per step of four answers, recorded on the demo."""
TEXT = "Seven times six is forty-two and nothing else."


def ask(pattern: int, **options: bool) -> bytes:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": str(pattern)}],
        "stream": True,
        "stream_options": options or None,
    }
    return write_post("/v1/chat/completions", json.dumps(body).encode())


async def record_rounds(cadence_ms: float, rounds: int, **options: bool) -> list[tuple[int, Trace]]:
    lab = Lab(timing=StreamTiming(pacing=Cadence(cadence_ms) if cadence_ms else None))
    ids = lab.renderer.encode(TEXT, False)
    traces = []
    with ExitStack() as stack:
        url = stack.enter_context(on_a_port(lab.app))
        port = urlsplit(url).port or 0
        for _ in range(rounds):
            for at, pattern in random.Random(1).sample([*enumerate(PATTERNS)], len(PATTERNS)):
                said = steps(ids, pattern)
                lab.engine.script = [item for step in said for item in (Pause(0.002), step)]
                traces.append((at, await record(port, ask(at, **options))))
    return traces


async def test_the_attack_reads_plain_streams_by_their_sizes() -> None:
    traces = await record_rounds(0, 8)
    guess = attack(traces[:16], traces[16:])
    assert (guess.accuracy, guess.num_tests) == (1.0, 16)


async def test_obfuscation_leaves_the_number_of_frames() -> None:
    traces = await record_rounds(0, 8, include_obfuscation=True)
    sizes = {size for _, trace in traces for size in trace.sizes}
    assert all(size % 512 == 0 for size in sizes - {14})
    assert attack(traces[:16], traces[16:]).accuracy > 0.9


async def test_paced_streams_all_look_alike() -> None:
    traces = await record_rounds(20, 4)
    assert {tuple(trace.sizes) for _, trace in traces} == {(BLOCK,) * 8}
    assert all(len(set(trace.bare_sizes)) > 2 for _, trace in traces), "the filling hides sizes"


@pytest.mark.parametrize(
    ("below", "above", "area"),
    [([1, 2], [3, 4], 1.0), ([3, 4], [1, 2], 0.0), ([1, 1], [1, 1], 0.5), ([1, 4], [2, 3], 0.5)],
)
def test_area_under_curve(below: list[float], above: list[float], area: float) -> None:
    assert area_under_curve(below, above) == area


def test_a_guess_on_noise_is_chance() -> None:
    rng = random.Random(7)
    rows = [
        (at % 4, Trace([rng.randrange(9) for _ in range(5)], [0.0] * 5, [1] * 5))
        for at in range(800)
    ]
    assert abs(attack(rows[:400], rows[400:]).accuracy - 0.25) < 0.08
