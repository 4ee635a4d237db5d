"""The sharing of steps between a latency class and others, with known times."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from eaglegate.features.fair_share.fair_share import (
    KEYS,
    SLACK,
    DecodingRow,
    FairShare,
    Ration,
    ShareMember,
)

DEPTH = 3
STEP_S = 0.01


def make_share(**others: float) -> FairShare:
    """One request ``fast`` of a latency class, and others with the weights of their keys."""
    share = FairShare()
    share.add("fast", ShareMember("fast", latency=True))
    for name, weight in others.items():
        share.add(name, ShareMember(name.rstrip("0123456789"), weight))
    return share


def run(
    share: FairShare,
    rows: list[DecodingRow],
    prompt: int = 0,
    steps: int = 400,
    row: float = 0.05,
    token: float = 0.02,
    late: float = 0.0,
    noise: float = 0.0,
) -> tuple[Counter[str], list[Ration], float]:
    """Steps that each request was in, the rations, and the time of a step over one alone.

    In steps alone, a request adds ``row``, a draft ``token``, a prompt 0.1 and its token 0.01. The
    part ``late`` of it falls into the step after. Times err by the share ``noise``.
    """
    owed, rng = 0.0, random.Random(7)
    served: Counter[str] = Counter()
    rations, taken = [], 0.0
    for _ in range(steps):
        ration = share.ration(rows, prompt, DEPTH) or Ration()
        in_step = [
            DecodingRow(one.name, ration.widths.get(one.name, one.width))
            for one in rows
            if one.name not in ration.held_requests
        ]
        read = min(prompt, prompt if ration.prompt is None else ration.prompt)
        shared = share.settle(in_step, read, DEPTH, DEPTH)
        assert shared is not None
        more = row * shared.rows + token * shared.drafts + 0.1 * bool(read) + 0.01 * read
        in_time, owed = (1 - late) * more + owed, late * more
        share.observe_step(shared, STEP_S * (1 + in_time) * rng.gauss(1.0, noise))
        taken += 1 + more
        served.update(one.name for one in in_step)
        rations.append(ration)
    return served, rations, taken / steps


def test_steps_without_a_latency_class_are_not_limited() -> None:
    share = make_share(slow=1.0)
    assert share.is_needed
    assert share.ration([DecodingRow("slow", 3)], 100, DEPTH) is None
    share.remove("fast")
    assert not share.is_needed


@pytest.mark.parametrize("prompt", [0, 5000])
def test_others_add_no_more_than_the_slack(prompt: int) -> None:
    share = make_share(**{f"slow{at}": 1.0 for at in range(6)})
    rows = [DecodingRow("fast", 3), *(DecodingRow(f"slow{at}", 3) for at in range(6))]
    served, _, mean = run(share, rows, prompt, steps=1000)
    assert 1 + 0.6 * SLACK < mean < 1.1
    assert served["fast"] == 1000
    others = [served[row.name] for row in rows[1:]]
    assert min(others) > 0.9 * max(others) > 0


@pytest.mark.parametrize("late", [0.3, 0.6])
def test_work_that_is_felt_a_step_later_is_paid_as_well(late: float) -> None:
    share = make_share(**{f"slow{at}": 1.0 for at in range(6)})
    rows = [DecodingRow("fast", 3), *(DecodingRow(f"slow{at}", 3) for at in range(6))]
    _, _, mean = run(share, rows, steps=1000, late=late)
    assert 1 + 0.6 * SLACK < mean < 1.1


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_noise_of_the_machine_does_not_pass_for_work(noise: float) -> None:
    """The mean of what others add stays near the limit in every 500 steps."""
    share = make_share(**{f"slow{at}": 1.0 for at in range(6)})
    rows = [DecodingRow("fast", 3), *(DecodingRow(f"slow{at}", 3) for at in range(6))]
    run(share, rows, noise=noise)
    means = [run(share, rows, steps=500, noise=noise)[2] for _ in range(6)]
    assert max(means) < 1 + 1.6 * SLACK
    assert min(means) > 1 + 0.5 * SLACK


def test_others_are_limited_where_no_step_alone_is_known() -> None:
    """Every step has a depth of its own, so that none is like another."""
    share = make_share(**{f"slow{at}": 1.0 for at in range(6)})
    rows = [DecodingRow("fast", 0), *(DecodingRow(f"slow{at}", 0) for at in range(6))]
    served: Counter[str] = Counter()
    for depth in range(300):
        ration = share.ration(rows, 0, depth)
        assert ration is not None
        kept = [row for row in rows if row.name not in ration.held_requests]
        served.update(row.name for row in kept)
        share.settle(kept, 0, depth, depth + 1)
    assert served["fast"] == 300
    assert 300 < sum(served[f"slow{at}"] for at in range(6)) < 0.5 * 6 * 300


def test_a_step_that_makes_no_drafts_does_not_change_the_time_of_others() -> None:
    """The last step of an answer makes none, and takes less time."""
    share = make_share(slow=1.0)
    rows = [DecodingRow("fast", 3), DecodingRow("slow", 3)]
    run(share, rows)
    before = share._find_alone((1, DEPTH, DEPTH))
    for made in (0, DEPTH) * 20:
        shared = share.settle(rows[:1], 0, DEPTH, made)
        assert shared is not None
        share.observe_step(shared, STEP_S if made else STEP_S / 2)
    assert share._find_alone((1, DEPTH, DEPTH)) == before


def test_turns_and_waits_are_counted_by_key() -> None:
    share = make_share(**{f"slow{at}": 1.0 for at in range(6)})
    rows = [DecodingRow("fast", 0), *(DecodingRow(f"slow{at}", 0) for at in range(6))]
    served, rations, _ = run(share, rows)
    found: Any = share.describe()["keys"]
    assert found == {
        "slow": {
            "in_step": sum(served[row.name] for row in rows[1:]),
            "waited": sum(len(ration.held_requests) for ration in rations),
        }
    }
    for at in range(100):
        share.add(f"z{at}", ShareMember(f"key{at}"))
        share.ration([rows[0], DecodingRow(f"z{at}", 0)], 0, DEPTH)
    found = share.describe()["keys"]
    assert len(found) == KEYS and "slow" not in found


def test_drafts_are_given_up_before_turns() -> None:
    share = make_share(slow=1.0)
    rows = [DecodingRow("fast", 3), DecodingRow("slow", 3)]
    served, rations, mean = run(share, rows, row=0.04, token=0.06)
    assert served["slow"] > 340
    assert sum(ration.widths.get("slow", 3) for ration in rations[10:]) < 0.6 * 3 * 390
    assert mean < 1.1


def test_work_that_costs_little_is_not_limited() -> None:
    share = make_share(slow=1.0)
    rows = [DecodingRow("fast", 3), DecodingRow("slow", 3)]
    served, rations, _ = run(share, rows, row=0.01, token=0.005)
    assert served["slow"] > 0.9 * 400
    assert not any(ration.widths for ration in rations[50:])


def test_turns_are_shared_by_the_weight_of_keys_and_not_by_their_requests() -> None:
    share = make_share(a0=3.0, a1=3.0, b0=1.0, b1=1.0, b2=1.0, b3=1.0)
    rows = [
        DecodingRow("fast", 0),
        *(DecodingRow(name, 0) for name in ("a0", "a1", "b0", "b1", "b2", "b3")),
    ]
    served, _, _ = run(share, rows, steps=2000, row=0.2)
    heavy, light = served["a0"] + served["a1"], sum(served[f"b{at}"] for at in range(4))
    assert heavy / light == pytest.approx(3.0, rel=0.1)
    assert served["b0"] == pytest.approx(served["b3"], abs=2)


def test_several_turns_of_one_step_are_shared_by_weight() -> None:
    """After a time without waits, the account pays for seven of eight: a light one waits."""
    names = [f"{key}{at}" for key in ("heavy", "light") for at in range(4)]
    share = make_share(**{name: 3.0 if name.startswith("heavy") else 1.0 for name in names})
    rows = [DecodingRow("fast", 0), *(DecodingRow(name, 0) for name in names)]
    cost: Any = {"row": SLACK / 4, "token": 0.0}
    run(share, rows, **cost)
    for _ in range(3):
        run(share, rows[:2], steps=20, **cost)
        _, (ration,), _ = run(share, rows, steps=1, **cost)
        (held,) = ration.held_requests
        assert held.startswith("light")


def test_drafts_are_shared_by_weight() -> None:
    share = make_share(a=3.0, b=1.0)
    widths = share._divide_drafts([DecodingRow("a", 9), DecodingRow("b", 9)], 8)
    assert widths == {"a": 6, "b": 2}
    assert share._divide_drafts([DecodingRow("a", 3), DecodingRow("b", 9)], 8) == {"a": 3, "b": 5}


def test_an_objective_that_cannot_be_kept_leaves_others_a_little() -> None:
    share = FairShare()
    share.add("fast", ShareMember("fast", latency=True, objective_s=1e-6))
    share.add("slow", ShareMember("slow"))
    served, _, mean = run(share, [DecodingRow("fast", 0), DecodingRow("slow", 0)])
    assert 0 < served["slow"] < 400
    assert mean < 1.05


def test_a_loose_objective_leaves_others_alone() -> None:
    share = FairShare()
    share.add("fast", ShareMember("fast", latency=True, objective_s=1.0))
    share.add("slow", ShareMember("slow"))
    served, _, _ = run(share, [DecodingRow("fast", 0), DecodingRow("slow", 0)], row=0.5)
    assert served["slow"] > 0.9 * 400


def test_a_prompt_is_read_in_pieces() -> None:
    share = make_share()
    _, rations, mean = run(share, [DecodingRow("fast", 3)], 5000)
    assert mean < 1.1
    pieces = [ration.prompt or 0 for ration in rations]
    assert sum(pieces) > 0 and max(pieces) < 500
    assert all(piece == 0 or piece >= 32 for piece in pieces)


def test_a_measurement_that_never_comes_holds_nobody_for_good() -> None:
    """Prompts that are read in one piece leave no step alone."""
    share = make_share(slow=1.0)
    rows = [DecodingRow("fast", 0), DecodingRow("slow", 0)]
    run(share, rows)
    num_waits = 0
    for _ in range(400):
        ration = share.ration(rows, 100, DEPTH)
        assert ration is not None
        num_waits += "slow" in ration.held_requests
        share.settle([row for row in rows if row.name not in ration.held_requests], 100, DEPTH, 3)
    assert num_waits < 300


def test_a_new_key_starts_level_with_those_that_are_active() -> None:
    """And not with one that left long ago."""
    share = make_share(old=1.0, slow1=1.0, slow2=1.0)
    for name, key in (("slow1", "first"), ("slow2", "second"), ("new", "new")):
        share.remove(name)
        share.add(name, ShareMember(key))
    fast, *others = (DecodingRow(name, 0) for name in ("fast", "slow1", "slow2", "old", "new"))
    run(share, [fast, *others[:3]], row=0.5, steps=20)
    run(share, [fast, *others[:2]], row=0.5, steps=2000)
    served, _, _ = run(share, [fast, *others[:2], others[3]], row=0.5, steps=300)
    assert served["new"] < 2 * served["slow1"]
