"""docs/drafts.md names every rule."""

from __future__ import annotations

from pathlib import Path

from engine.speculation.inspection import config_rules, general_rules, tensor_rules

PAGE = Path(__file__).parents[3] / "docs" / "drafts.md"


def test_every_rule_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    rules = general_rules.RULES | config_rules.RULES | tensor_rules.RULES
    assert [name for name in rules if f"| `{name}` | " not in page] == []
