"""The sharing of steps between a latency class and others, with known times."""

from __future__ import annotations

from collections import Counter

import pytest

from eaglegate.engine.speculation.fair_share import (
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
) -> tuple[Counter[str], list[Ration], float]:
    """Steps that each request was in, the rations, and the time of a step over one alone.

    In steps alone, a request adds ``row``, a draft ``token``, a prompt 0.1 and its token 0.01. The
    part ``late`` of it falls into the step after.
    """
    owed = 0.0
    served: Counter[str] = Counter()
    rations, taken = [], 0.0
    for _ in range(steps):
        ration = share.ration(rows, prompt, DEPTH) or Ration()
        in_step = [
            DecodingRow(one.name, ration.widths.get(one.name, one.width))
            for one in rows
            if one.name not in ration.held
        ]
        read = min(prompt, prompt if ration.prompt is None else ration.prompt)
        shared = share.settle(in_step, read, DEPTH, DEPTH)
        assert shared is not None
        more = row * shared.rows + token * shared.drafts + 0.1 * bool(read) + 0.01 * read
        in_time, owed = (1 - late) * more + owed, late * more
        share.observe_step(shared, STEP_S * (1 + in_time))
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
