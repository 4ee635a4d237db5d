"""Effects as people read them, per cent and points of the metric itself, and as metrics."""

from __future__ import annotations

from typing import Any

import pytest

from eaglegate.features.canary import draft_command
from eaglegate.features.canary.canary import describe_evidence
from eaglegate.features.canary.effects import describe_effect
from eaglegate.features.canary.metrics import Canaries
from eaglegate.features.canary.sequential import CanaryRules, CanaryTest, SlotPair
from tests.observability.scene import make_telemetry, read


def row(metric: str, mean: float, low: float | None, high: float | None, blocks: int = 9) -> Any:
    return {"metric": metric, "mean": mean, "low": low, "high": high, "blocks": blocks}


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        (row("tpot", -0.224, -0.694, 0.246), "TPOT 25 % slower (22 % faster to 100 % slower)"),
        (
            row("tpot:chat", 0.105, 0.05, 0.2),
            "TPOT of chat 10 % faster (18 % faster to 5 % faster)",
        ),
        (
            row("acceptance", 0.223, 0.1, 0.3),
            "acceptance length 25 % longer (11 % longer to 35 % longer)",
        ),
        (
            row("acceptance", -0.95, -0.97, -0.93),
            "acceptance length 61 % shorter (62 % shorter to 61 % shorter)",
        ),
        (
            row("failed", -0.031, -0.05, 0.004),
            "failed requests 3.1 points more (0.4 points fewer to 5.0 points more)",
        ),
        (
            row("fallback", 0.0, -0.01, 0.01),
            "fallback unchanged (1.0 points less to 1.0 points more)",
        ),
        (row("tpot", -0.1, None, None, 1), "TPOT 11 % slower (too few blocks for an interval: 1)"),
        (row("tool_failed", 0.0, None, None, 0), "failed tool calls: no data yet"),
    ],
)
def test_an_effect_is_told_as_people_say_it(evidence: Any, text: str) -> None:
    assert describe_effect(evidence) == text


def judge(control: float, candidate: float, blocks: int) -> Any:
    test = CanaryTest(CanaryRules.for_tpot())
    for at in range(blocks):
        arms = ({f"{at}-{n}": [value] for n in range(2)} for value in (control, candidate))
        test.add(SlotPair(*({"tpot": sessions} for sessions in arms)))
    return test.judge()


def test_the_words_are_those_of_what_was_measured() -> None:
    """An output token takes half as long again as the control's."""
    evidence = judge(0.02, 0.03, 9).evidence[0]
    told = describe_evidence(
        {"metric": evidence.metric, "interval": vars_of(evidence.interval), "margin": 0.0}
    )
    assert told["text"].startswith("TPOT 50 % slower (")


def vars_of(interval: Any) -> dict[str, Any]:
    return {name: getattr(interval, name) for name in ("mean", "low", "high", "blocks")}


def test_the_verdict_counts_missing_blocks_and_sessions() -> None:
    found = judge(0.02, 0.02, 9)
    assert found.reason == "too little data: 9 of 6 blocks, 18 of 20 sessions"


def test_the_command_prints_a_line_of_words_for_each_metric() -> None:
    canary = {
        "running": True, "verdict": None, "candidate": "b", "control": "a", "blocks": 9,
        "by": "slots", "max_blocks": 60, "sessions": 16, "reason": "tpot is not shown to be better",
        "evidence": [row("tpot", -0.224, -0.694, 0.246)],
    }  # fmt: skip
    lines = draft_command._format({"canary": canary}).splitlines()
    assert lines[-1].strip() == "TPOT 25 % slower (22 % faster to 100 % slower)"
    assert "?" not in "".join(lines)


def test_the_effect_has_only_the_ends_that_are_known() -> None:
    telemetry = make_telemetry(())
    row = {"metric": "tpot", "mean": 0.1, "low": None, "high": 0.3, "blocks": 4}
    canary = {"running": True, "blocks": 4, "evidence": [row]}
    telemetry.add_group(lambda scope: Canaries(scope, lambda: canary, lambda: {"promote": 2}))
    assert read(telemetry, "canaries_total", verdict="promote") == 2
    assert read(telemetry, "canary_running") == 1
    assert read(telemetry, "canary_blocks") == 4
    assert read(telemetry, "canary_effect", metric="tpot", end="high") == 0.3
    assert read(telemetry, "canary_effect", metric="tpot", end="low") is None
