from __future__ import annotations

import pytest

from eaglegate.server.generation.slices import classify_workload, fingerprint


@pytest.mark.parametrize(
    ("named", "asked", "want"),
    [
        ("batch", "tools", "batch"),
        ("<script>", "", "chat"),
        (None, "tools", "tools"),
        (None, "structured", "structured"),
        (None, "reasoning", "reasoning"),
        ("", "", "chat"),
    ],
)
def test_only_configured_names_pass(named, asked, want):
    workload = classify_workload(
        named,
        {"batch"},
        has_tools=asked == "tools",
        has_constraint=asked == "structured",
        has_reasoning=asked == "reasoning",
    )
    assert workload == want


def test_fingerprint_stands_for_system_prompt_and_tools():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}
    same = {"function": {"parameters": {"b": 2, "a": 1}, "name": "f"}, "type": "function"}
    assert fingerprint(["be brief"], [tool]) == fingerprint(["be brief"], [same])
    assert fingerprint(["be brief"], [tool]) != fingerprint(["be long"], [tool])
    assert fingerprint(["be brief"]) != fingerprint(["be brief"], [tool])
    assert fingerprint([], None) == fingerprint([""], []) == ""
