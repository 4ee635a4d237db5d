"""docs/drafts.md names every rule."""

from __future__ import annotations

from pathlib import Path

from tests.engine.speculation.draft_rules import ALL_RULES

PAGE = Path(__file__).parents[3] / "docs" / "drafts.md"


def test_every_rule_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in ALL_RULES if f"| `{name}` | " not in page] == []
