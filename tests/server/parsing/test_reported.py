"""Answers as templates write them, and as models damage them; every cutting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.types import FinishReason
from tests.server.parsing.test_damaged import Damage, check

FILES = [
    yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("reported.yaml", "shapes.yaml")
]
CASES = [(case, file["tools"]) for file in FILES for case in file["ordinary"] + file["damaged"]]


@pytest.mark.parametrize(
    ("case", "tools"), [pytest.param(*case, id=str(case[0]["name"])) for case in CASES]
)
def test_an_answer(case: dict[str, Any], tools: dict[str, Any]) -> None:
    calls = [
        (call["name"], call["arguments"], call.get("outcome", "valid"))
        for call in case.get("calls", ())
    ]
    check(
        Damage(
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
    )
