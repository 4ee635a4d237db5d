"""Tables of the engine's process that clients' names would fill: bounded, and forgotten by key."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.slice_rows import MAX_SLICES
from eaglegate.engine.speculation.planner.survival import SurvivalEstimator
from eaglegate.features.fair_share.fair_share import DecodingRow, FairShare, ShareMember
from eaglegate.features.lookups.chooser import LookupChooser

DEPTH = 3


def serve(estimator: SurvivalEstimator, tenant: str, accepted: int, traffic: str = "chat") -> None:
    """Serve one request of a tenant, whose steps all accept so many drafts."""
    estimator.add(tenant, traffic, tenant)
    for _ in range(20):
        estimator.observe([tenant], [[DEPTH]], [[accepted]])
    estimator.remove(tenant)


def expect(estimator: SurvivalEstimator, tenant: str) -> list[float]:
    """What the next request of a tenant's chat begins with."""
    estimator.add("next", "chat", tenant)
    survival: list[float] = estimator.survival(["next"])[0].tolist()
    estimator.remove("next")
    return survival


def plan_keys(keys: range) -> DepthPlanner:
    planner = DepthPlanner(DEPTH)
    for key in keys:
        planner.begin("a", "chat", f"key-{key}")
        plan = planner.plan(["a"], [DEPTH])
        planner.observe(["a"], plan.widths, plan.widths)
        planner.end("a")
    return planner


def choose_lookups(keys: range) -> LookupChooser:
    chooser = LookupChooser(8, DEPTH)
    for key in keys:
        chooser.begin("a", [1, 2, 3, 4] * 4, 16, "chat", f"key-{key}")
        chooser.choose("a", [1, 2, 3], DEPTH, 8)
        chooser.end("a")
    return chooser


def share_steps(keys: range) -> FairShare:
    """Beside a latency class that never leaves, requests of each key wait for steps in turn."""
    share = FairShare()
    share.add("fast", ShareMember("chat", latency=True))
    fast, others = DecodingRow("fast", 0), [DecodingRow(f"slow-{i}", 0) for i in range(8)]
    for key in keys:
        for row in others:
            share.add(row.name, ShareMember(f"key-{key}"))
        for _ in range(20):
            ration = share.ration([fast, *others], 0, 0)
            assert ration is not None
            rows = [row for row in others if row.name not in ration.held_requests]
            if (step := share.settle([fast, *rows], 0, 0, 0)) is not None:
                share.observe_step(step, 0.01 + 0.001 * step.rows)
        for row in others:
            share.remove(row.name)
    return share


@pytest.mark.parametrize("fill", [plan_keys, choose_lookups, share_steps])
def test_tables_grow_to_a_bound(fill: Callable[[range], Any]) -> None:
    sizes = [len(pickle.dumps(fill(range(count)))) for count in (MAX_SLICES, 3 * MAX_SLICES)]
    assert sizes[1] < 1.2 * sizes[0]


def test_the_slice_that_was_used_last_is_kept() -> None:
    estimator = SurvivalEstimator(DEPTH)
    fresh = expect(SurvivalEstimator(DEPTH), "new")
    for key in range(MAX_SLICES):
        serve(estimator, f"key-{key}", accepted=0)
    serve(estimator, "key-0", accepted=0)
    serve(estimator, "another", accepted=0)
    assert expect(estimator, "key-0") < fresh
    assert expect(estimator, "key-1") == fresh


def test_running_requests_keep_their_slices() -> None:
    estimator = SurvivalEstimator(DEPTH)
    serve(estimator, "mine", accepted=0)
    learnt = expect(estimator, "mine")
    estimator.add("running", "chat", "mine")
    for key in range(2 * MAX_SLICES):
        serve(estimator, f"key-{key}", accepted=DEPTH)
    estimator.remove("running")
    assert expect(estimator, "mine") == pytest.approx(learnt, rel=0.01)


def test_a_removed_key_is_forgotten_and_others_are_not() -> None:
    estimator = SurvivalEstimator(DEPTH)
    fresh = expect(SurvivalEstimator(DEPTH), "new")
    for tenant in ("gone", "stays"):
        serve(estimator, tenant, accepted=0)
    estimator.add("running", "chat", "gone")
    stays = expect(estimator, "stays")
    estimator.forget(["gone"])
    assert {row["tenant"] for row in estimator.copy_slices()()} == {"stays"}
    estimator.observe(["running"], [[DEPTH]], [[0]])
    estimator.remove("running")
    assert expect(estimator, "gone") == fresh
    assert expect(estimator, "stays") == stays


def test_a_lookup_slice_in_a_used_row_begins_anew() -> None:
    text = [1, 2, 3, 4] * 8
    chooser = LookupChooser(8, DEPTH)
    chooser.begin("a", text, len(text), "chat", "gone")
    for _ in range(40):
        chooser.begin_step()
        chooser.choose("a", [9, 9, 9], DEPTH, 8)
        text += [1, 2, 3, 4]
    taught = list(chooser.acceptance.lookup_values)
    chooser.end("a")
    chooser.acceptance.forget(["gone"])
    chooser.begin("a", text, len(text), "chat", "new")
    fresh = LookupChooser(8, DEPTH).acceptance
    fresh.price = chooser.acceptance.price
    fresh.take_slice("chat", "new")
    assert chooser.acceptance.lookup_values == fresh.lookup_values != taught
