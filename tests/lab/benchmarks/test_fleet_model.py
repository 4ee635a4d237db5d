"""The simulated fleet repeats itself, and shows what balancing is for."""

from __future__ import annotations

import pytest

from eaglegate.lab.benchmarks.fleet_model import POLICIES, Machine, Simulation, Trace

TRACE = Trace(sessions_per_s=3.0, seconds=6.0, turns=6.0, apps=4)


def ran(policy: str, gateways: int = 1) -> Simulation:
    run = Simulation(TRACE, Machine(), 3, policy, seed=1, gateways=gateways)
    run.run()
    return run


@pytest.fixture(scope="module")
def runs() -> dict[str, Simulation]:
    return {policy: ran(policy) for policy in POLICIES}


@pytest.mark.thorough
def test_equal_seeds_give_equal_runs(runs):
    again = ran("affinity")
    assert again.ttft == runs["affinity"].ttft
    assert again.cached_tokens == runs["affinity"].cached_tokens


@pytest.mark.thorough
def test_every_policy_gets_the_same_requests(runs):
    assert len({len(run.ttft) for run in runs.values()}) == 1
    assert len({run.prompt_tokens for run in runs.values()}) == 1


@pytest.mark.thorough
def test_affinity_finds_what_is_cached(runs):
    rates = {name: run.cached_tokens / run.prompt_tokens for name, run in runs.items()}
    blind = max(rates["round robin"], rates["least outstanding"])
    assert rates["affinity"] > rates["hash"] > blind
    assert rates["session"] > blind + 0.1


def test_nothing_is_left_behind(runs):
    for run in runs.values():
        assert not any(worker.running or worker.waiting for worker in run.workers.values())
        for gateway in run.gateways:
            loads = [gateway._balancer.load(name) for name in run.names]
            assert all((load.tokens, load.requests) == (0, 0) for load in loads)


def test_gateways_that_know_nothing_of_one_another_agree_on_sessions(runs):
    apart, alone = ran("session", gateways=3), runs["session"]
    rates = [run.cached_tokens / run.prompt_tokens for run in (apart, alone)]
    assert rates[0] > rates[1] - 0.05
