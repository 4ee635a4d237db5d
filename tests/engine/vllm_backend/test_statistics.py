import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Histogram
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import (
    FinishedRequestStats,
    IterationStats,
    KVCacheEvictionEvent,
    SchedulerStats,
)
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from eaglegate.engine.vllm_backend.statistics import BatchedStatLogger, observe

DEMO = Path(__file__).parents[3] / "engine" / "demo"
Recorded = tuple[SchedulerStats | None, IterationStats | None]


@pytest.fixture(scope="module")
def config() -> Any:
    draft = {"method": "eagle3", "model": str(DEMO / "eagle3_1"), "num_speculative_tokens": 3}
    arguments = AsyncEngineArgs(
        model=str(DEMO / "target"),
        dtype="float32",
        enforce_eager=True,
        distributed_executor_backend="uni",
        speculative_config=draft,
        kv_cache_metrics=True,
    )
    return arguments.create_engine_config()


def step(rng: random.Random) -> Recorded:
    """Mostly one in which requests only go on."""
    requests = rng.randint(1, 8)
    iteration, scheduler = IterationStats(), SchedulerStats(num_running_reqs=requests)
    scheduler.kv_cache_usage = rng.random()
    scheduler.num_waiting_reqs = rng.randint(0, 3)
    iteration.inter_token_latencies_iter = [rng.expovariate(20) for _ in range(requests)]
    if rng.random() < 0.9:
        scheduler.spec_decoding_stats = drafts = SpecDecodingStats.new(3)
        for _ in range(requests):
            drafts.observe_draft(3, rng.randint(0, 3))
        iteration.num_generation_tokens = requests + drafts.num_accepted_tokens
    return happens(rng, scheduler, iteration)


def happens(rng: random.Random, scheduler: SchedulerStats, iteration: IterationStats) -> Recorded:
    match rng.randint(0, 11):
        case 0:
            iteration.time_to_first_tokens_iter = [rng.random()]
            iteration.prompt_token_stats.computed = iteration.prompt_token_stats.total = 30
            scheduler.prefix_cache_stats.queries, scheduler.prefix_cache_stats.hits = 30, 16
        case 1:
            end = FinishedRequestStats(FinishReason.STOP, e2e_latency=2.5, num_generation_tokens=9)
            iteration.finished_requests = [end]
            iteration.max_num_generation_tokens_iter, iteration.n_params_iter = [9], [1]
        case 2:
            iteration.num_preempted_reqs = 1
        case 3:
            scheduler.kv_cache_eviction_events = [KVCacheEvictionEvent(3.0, 1.0, (0.5,))]
        case 4:
            return scheduler, None
        case 5:
            return None, iteration
    return scheduler, iteration


def read() -> dict[Any, float]:
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if family.name.startswith("vllm:") and not sample.name.endswith("_created")
    }


def told(logger: PrometheusStatLogger, steps: list[Recorded]) -> dict[Any, float]:
    for scheduler, iteration in steps:
        logger.record(scheduler, iteration)
    return read()


@pytest.mark.parametrize("count", [1, 7, 255, 256, 257, 900])
def test_batched_metrics_equal_those_of_vllm(config: Any, count: int) -> None:
    theirs = told(PrometheusStatLogger(config), [step(rng) for rng in seeded(count)])
    ours = told(BatchedStatLogger(config), [step(rng) for rng in seeded(count)])
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert len(ours) > 300


def seeded(count: int) -> list[random.Random]:
    return [random.Random(number) for number in range(count)]


def test_a_histogram_observes_many_as_one_by_one() -> None:
    values = [0.0, 0.1, 0.10001, 1.0, 5.0, 1e9, *(random.Random(1).random() for _ in range(50))]
    each, all_ = (
        Histogram("h", "", registry=CollectorRegistry(), buckets=(0.1, 0.5, 1.0)) for _ in range(2)
    )
    for value in values:
        each.observe(value)
    observe(all_, values)
    (one,), (other,) = each.collect(), all_.collect()
    for expected, given in zip(one.samples[:-1], other.samples[:-1], strict=True):
        assert given[:2] == expected[:2]
        assert given.value == pytest.approx(expected.value)
