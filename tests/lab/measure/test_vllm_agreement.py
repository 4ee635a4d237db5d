"""Our arithmetic beside that of `vllm bench serve`, on the same requests."""

from __future__ import annotations

import random

import pytest

from eaglegate.lab.measure.figures import Block, Goal, compute_figures
from eaglegate.lab.measure.stream import RequestResult

pytestmark = pytest.mark.slow
serve = pytest.importorskip("vllm.benchmarks.serve")
requests = pytest.importorskip("vllm.benchmarks.lib.endpoint_request_func")
DURATION = 17.3


def draw_results():
    rng = random.Random(4)
    for number in range(60):
        gaps = [rng.expovariate(30) for _ in range(rng.randrange(0, 40))]
        ttft = rng.uniform(0.02, 0.4)
        tokens = 1 + sum(rng.randrange(1, 5) for _ in gaps)
        yield RequestResult(
            f"r{number}", f"s{number}", started=number * 0.1, ttft=ttft, gaps=gaps,
            latency=ttft + sum(gaps), output_tokens=tokens, prompt_tokens=rng.randrange(5, 90),
            error="gone" if number % 15 == 7 else None,
        )  # fmt: skip


def convert(result):
    return requests.RequestFuncOutput(
        success=result.ok, latency=result.latency, output_tokens=result.output_tokens,
        ttft=result.ttft, itl=result.gaps, prompt_len=result.prompt_tokens,
        start_time=result.started,
    )  # fmt: skip


def test_the_same_requests_give_the_same_figures():
    results = tuple(draw_results())
    ours = compute_figures([Block("a", "1", 0, DURATION, results)], Goal({"ttft": 300, "tpot": 20}))
    theirs, lengths = serve.calculate_metrics(
        [None] * len(results), [convert(result) for result in results], DURATION, None,
        [90.0, 95.0, 99.0], {"ttft": 300, "tpot": 20},
    )  # fmt: skip
    assert (ours.requests, ours.failed) == (theirs.completed, theirs.failed) == (56, 4)
    assert (ours.output_tokens, ours.prompt_tokens) == (sum(lengths), theirs.total_input)
    assert ours.request_rate == pytest.approx(theirs.request_throughput)
    assert ours.throughput.value == pytest.approx(theirs.output_throughput)
    assert ours.goodput == pytest.approx(theirs.request_goodput)
    assert 0 < ours.goodput < ours.request_rate
    for name in ("ttft", "tpot", "itl", "e2el"):
        mine = getattr(ours, name)
        assert mine.mean == pytest.approx(getattr(theirs, f"mean_{name}_ms"))
        assert mine.median == pytest.approx(getattr(theirs, f"median_{name}_ms"))
        assert mine.std == pytest.approx(getattr(theirs, f"std_{name}_ms"))
        percentiles = dict(getattr(theirs, f"percentiles_{name}_ms"))
        assert [mine.p90, mine.p95, mine.p99] == pytest.approx(list(percentiles.values()))
