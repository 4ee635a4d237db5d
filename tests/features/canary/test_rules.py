"""The memory of promoted rules: what a gateway serves with after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eaglegate.engine.speculation.policy.policy import FlagMode, SpeculationFlag, SpeculationRules
from eaglegate.features.canary.promoted import PromotedRules

CONFIGURED = SpeculationRules(depth=3)
PROMOTED = SpeculationRules(
    flag=SpeculationFlag(FlagMode.SHARE, 0.5, "request", "salt"),
    workload_flags={"structured": SpeculationFlag(FlagMode.OFF)},
    depth=2,
    workload_depths={"tools": 1},
    lookup=4,
)


def test_a_restart_serves_with_the_promoted_rules(tmp_path: Path) -> None:
    folder = str(tmp_path / "store")
    assert PromotedRules(folder, CONFIGURED).choose() == CONFIGURED
    PromotedRules(folder, CONFIGURED).remember(replace(PROMOTED, key_depths={"k": 1}))
    assert PromotedRules(folder, CONFIGURED).choose() == PROMOTED, "keys are the key file's"


def test_other_rules_on_the_command_line_win(tmp_path: Path) -> None:
    PromotedRules(str(tmp_path), CONFIGURED).remember(PROMOTED)
    other = SpeculationRules(depth=1)
    assert PromotedRules(str(tmp_path), other).choose() == other


def test_rules_of_an_operator_replace_promoted_rules(tmp_path: Path) -> None:
    memory = PromotedRules(str(tmp_path), CONFIGURED)
    memory.remember(PROMOTED)
    memory.forget()
    memory.forget()
    assert memory.choose() == CONFIGURED


def test_without_a_folder_nothing_is_remembered() -> None:
    memory = PromotedRules(None, CONFIGURED)
    memory.remember(PROMOTED)
    memory.forget()
    assert memory.choose() == CONFIGURED


@pytest.mark.parametrize("text", ["", "{", "[]", '{"configured": {"depth": 3}, "promoted": 1}'])
def test_a_damaged_file_is_no_rules(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.json").write_text(text)
    assert PromotedRules(str(tmp_path), CONFIGURED).choose() == CONFIGURED


def test_a_file_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    memory = PromotedRules(str(tmp_path / "file"), CONFIGURED)
    memory.remember(PROMOTED)
    assert "cannot store the promoted rules" in caplog.text
    assert memory.choose() == CONFIGURED
