"""The depth planner on the page, in /debug/speculation and in /metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep
from eaglegate.features.fair_share.fair_share import DecodingRow, FairShare, ShareMember
from eaglegate.observability.metrics.engine import summarize_planner
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from tests.observability.scene import make_telemetry, read_page


@pytest.fixture
def planner() -> DepthPlanner:
    """Two tenants of one slice; every draft token is accepted."""
    made = DepthPlanner(3)
    names = ["a", "b"]
    for name, tenant in zip(names, ("", "team-a"), strict=True):
        made.begin(name, "chat/answer/1k", tenant)
    for _ in range(100):
        plan = made.plan(names, [3, 3])
        made.observe(names, plan.widths, plan.widths)
        made.observe_step(ObservedStep(2, sum(plan.widths), plan.depth, 0.01 + 0.001 * plan.depth))
    return made


async def watch(planner: DepthPlanner | None) -> Telemetry:
    telemetry = make_telemetry()

    async def read(recent: int) -> Mapping[str, Any]:
        return {"mode": "off"} if planner is None else planner.describe(recent)

    telemetry.watch_planner(read)
    await telemetry.refresh_planner(5)
    return telemetry


def samples(telemetry: Telemetry, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in telemetry.registry.collect()
        for sample in family.samples
        if sample.name == f"eaglegate_planner_{name}"
    }


async def test_every_step_is_counted_once_by_depth_and_by_reason(planner: DepthPlanner) -> None:
    telemetry = await watch(planner)
    assert sum(samples(telemetry, "steps_total").values()) == 100
    assert sum(samples(telemetry, "decisions_total").values()) == 100
    assert samples(telemetry, "steps_total")["3",] > 80


async def test_tenants_are_summed_and_not_named_in_metrics(planner: DepthPlanner) -> None:
    telemetry = await watch(planner)
    assert sum(samples(telemetry, "requests_total").values()) == 200
    assert ("chat", "answer", "1k", "3") in samples(telemetry, "requests_total")
    assert "team-a" not in read_page(telemetry)


async def test_calibration_and_regret(planner: DepthPlanner) -> None:
    telemetry = await watch(planner)
    shown = summarize_speculation(telemetry)["planner"]
    assert shown["token_calibration"] == pytest.approx(1.0, abs=0.1)
    assert shown["time_calibration"] == pytest.approx(1.0, abs=0.1)
    assert shown["regret"] < 0.1
    assert len(shown["recent"]) == 5
    assert sum(shown["share_by_depth"]) == pytest.approx(1.0)
    fixed = samples(telemetry, "fixed_seconds_total")
    assert min(fixed, key=fixed.__getitem__) == ("3",), "all is accepted: the deepest is the best"


async def test_without_a_planner_there_is_nothing() -> None:
    telemetry = await watch(None)
    assert summarize_speculation(telemetry)["planner"] is None
    assert "eaglegate_planner_steps_total{" not in read_page(telemetry)


def test_nothing_planned_yet_is_no_data() -> None:
    shown = summarize_planner(DepthPlanner(3).describe())
    assert shown is not None
    assert shown["token_calibration"] is None
    assert shown["regret"] is None


async def test_steps_shared_with_a_latency_class_are_counted() -> None:
    share = FairShare()
    share.add("fast", ShareMember("chat", latency=True))
    rows = [DecodingRow("fast", 0), *(DecodingRow(f"slow{at}", 0) for at in range(3))]
    for _ in range(200):
        ration = share.ration(rows, 0, 0)
        assert ration is not None
        kept = [row for row in rows if row.name not in ration.held_requests]
        if (step := share.settle(kept, 0, 0, 0)) is not None:
            share.observe_step(step, 0.01 + 0.001 * step.rows)
    telemetry = make_telemetry()

    async def read(_: int) -> Mapping[str, Any]:
        return {"mode": "off", "sharing": share.describe()}

    telemetry.watch_planner(read)
    await telemetry.refresh_planner()
    text = read_page(telemetry)
    totals = share.totals
    assert totals.held_rows > 0
    for name, value in (
        ("steps", 200),
        ("alone_steps", totals.alone_steps),
        ("added_steps", totals.added),
        ("cut_drafts", 0),
        ("waits", totals.held_rows),
    ):
        assert f"eaglegate_shared_{name}_total {float(value)}\n" in text
