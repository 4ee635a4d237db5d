import pytest
from pydantic import TypeAdapter, ValidationError

from eaglegate.engine.speculation.policy.policy import (
    PLAIN,
    SPECULATIVE,
    DepthSource,
    FlagMode,
    PolicyTrial,
    SpeculationDecision,
    SpeculationFlag,
    SpeculationPolicy,
    SpeculationRules,
    draw_position,
    is_speculative,
)
from eaglegate.engine.types import Arm

IDS = [f"request-{number}" for number in range(4000)]


def test_by_default_everybody_speculates_at_the_engines_depth() -> None:
    assert SpeculationPolicy().decide("r", "chat") == SpeculationDecision(
        None, SPECULATIVE, DepthSource.ENGINE
    )


@pytest.mark.parametrize(
    ("asked", "key", "workload", "want"),
    [
        (2, "k", "agent", SpeculationDecision(2, SPECULATIVE, DepthSource.REQUEST)),
        (0, "k", "agent", SpeculationDecision(0, PLAIN, DepthSource.REQUEST)),
        (None, "k", "agent", SpeculationDecision(5, SPECULATIVE, DepthSource.KEY)),
        (None, "other", "agent", SpeculationDecision(4, SPECULATIVE, DepthSource.WORKLOAD)),
        (None, None, "chat", SpeculationDecision(3, SPECULATIVE, DepthSource.DEFAULT)),
    ],
)
def test_order_of_defaults(
    asked: int | None, key: str | None, workload: str, want: SpeculationDecision
) -> None:
    rules = SpeculationRules(depth=3, workload_depths={"agent": 4}, key_depths={"k": 5})
    assert SpeculationPolicy(rules).decide("r", workload, key, asked) == want


def test_off_beats_every_wish() -> None:
    rules = SpeculationRules(flag=SpeculationFlag(FlagMode.OFF), key_depths={"k": 5})
    assert SpeculationPolicy(rules).decide("r", "chat", "k", 3) == SpeculationDecision(
        0, PLAIN, DepthSource.FLAG
    )


def test_lookups_have_one_bound_for_all() -> None:
    rules = SpeculationRules(lookup=4, key_depths={"k": 2})
    policy = SpeculationPolicy(rules)
    assert policy.decide("r", "chat", "k").lookup == 4
    assert policy.decide("r", "agent", depth=3).lookup == 4
    policy.trial = PolicyTrial(lambda _: Arm.CANDIDATE, SpeculationRules(lookup=0))
    assert policy.decide("r", "chat").lookup == 0
    assert policy.decide("r", "chat", depth=3).lookup == 4, "a client's own depth is in no arm"


def test_a_workload_may_have_its_own_flag() -> None:
    policy = SpeculationPolicy(
        SpeculationRules(workload_flags={"batch": SpeculationFlag(FlagMode.OFF)})
    )
    assert policy.decide("r", "batch").lane == PLAIN
    assert policy.decide("r", "chat").lane == SPECULATIVE


def test_rules_change_at_run_time() -> None:
    policy = SpeculationPolicy()
    policy.rules = SpeculationRules(flag=SpeculationFlag(FlagMode.OFF))
    assert policy.decide("r", "chat").depth == 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_is_the_share(share: float) -> None:
    flag = SpeculationFlag(FlagMode.SHARE, share, sticky="request")
    taken = sum(is_speculative(flag, name, None) for name in IDS) / len(IDS)
    assert taken == pytest.approx(share, abs=0.02)


def test_raising_the_share_moves_nobody_out() -> None:
    small, large = (
        SpeculationFlag(FlagMode.SHARE, share, sticky="request") for share in (0.2, 0.6)
    )
    inside = [name for name in IDS if is_speculative(small, name, None)]
    assert inside
    assert all(is_speculative(large, name, None) for name in inside)


def test_sticky_by_key_keeps_a_key_together() -> None:
    flag = SpeculationFlag(FlagMode.SHARE, 0.5, sticky="key")
    assert len({is_speculative(flag, name, "one key") for name in IDS}) == 1
    assert len({is_speculative(flag, name, None) for name in IDS}) == 2


def test_another_salt_draws_another_share() -> None:
    one, other = (SpeculationFlag(FlagMode.SHARE, 0.5, "request", salt) for salt in ("a", "b"))
    both = sum(
        is_speculative(one, name, None) and is_speculative(other, name, None) for name in IDS
    )
    assert both / len(IDS) == pytest.approx(0.25, abs=0.03)


def test_position_is_the_same_everywhere() -> None:
    """Pinned: a changed hash would move every request of a running experiment."""
    assert draw_position("", "request-0") == pytest.approx(0.126470, abs=1e-6)
    assert draw_position("salt", "request-0") == pytest.approx(0.947901, abs=1e-6)


def test_rules_can_be_read_from_json() -> None:
    body = b'{"flag": {"mode": "share", "share": 0.25}, "workload_depths": {"agent": 2}}'
    rules = TypeAdapter(SpeculationRules).validate_json(body)
    assert rules == SpeculationRules(
        flag=SpeculationFlag(FlagMode.SHARE, 0.25), workload_depths={"agent": 2}
    )


@pytest.mark.parametrize(
    "body",
    ['{"flag": {"share": 2}}', '{"depth": -1}', '{"key_depths": {"k": -3}}', '{"lookup": -1}'],
)
def test_impossible_rules_are_refused(body: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        TypeAdapter(SpeculationRules).validate_json(body)
