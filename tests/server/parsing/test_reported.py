"""Answers as templates write them, and as models damage them by public reports; every cutting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.types import FinishReason
from tests.server.parsing.test_damaged import Damage, check

FILE = yaml.safe_load(Path(__file__).with_name("reported.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "case", FILE["ordinary"] + FILE["damaged"], ids=lambda case: str(case["name"])
)
def test_an_answer(case: dict[str, Any]) -> None:
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
            FILE["tools"],
        )
    )
