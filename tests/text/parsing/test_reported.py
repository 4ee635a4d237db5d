"""Answers as templates write them, and as models damage them; every cutting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from eaglegate.text.events import FinishReason
from tests.text.parsing.test_damaged import Damage, check


def _load(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def damage_of(case: dict[str, Any], tools: dict[str, Any]) -> Damage:
    """A case of the files."""
    calls = [
        (call["name"], call["arguments"], call.get("outcome", "valid"))
        for call in case.get("calls", ())
    ]
    return Damage(
        case["name"],
        case["parser"],
        case["output"],
        tuple(calls),
        case.get("content", ""),
        case.get("reasoning", ""),
        case.get("thinks"),
        FinishReason(case.get("finish", "stop")),
        tools,
    )


REPORTED, SHAPES, THREADS = map(_load, ("reported.yaml", "shapes.yaml", "threads.yaml"))
CASES = [
    damage_of(case, file["tools"])
    for file in (REPORTED, SHAPES, THREADS)
    for case in file["ordinary"] + file["damaged"] + file.get("shown", [])
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_an_answer(case: Damage) -> None:
    check(case)
