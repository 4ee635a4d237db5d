"""Scoring of answers against the expected turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eaglegate.lab.training.data.turn import Call, Dialogue

TURN = re.compile(r"<think>\n(.*?)\n</think>\n\n(.*)$", re.DOTALL)
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@dataclass
class Score:
    """Counts over answers of one kind. Argument counts are over arguments."""

    asked: int = 0
    ended: int = 0
    thought: int = 0
    exact: int = 0
    calls_asked: int = 0
    valid_json: int = 0
    right_functions: int = 0
    arguments: int = 0
    right_arguments: int = 0

    def add(self, expected: Dialogue, text: str, ended: bool) -> bool:
        """Count one answer. Return True if all of it is right."""
        text = text.removesuffix("<|im_end|>")
        turn = TURN.match(text)
        body = turn.group(2) if turn else text
        self.asked += 1
        self.ended += ended
        self.thought += turn is not None
        if expected.kind == "held":
            right = ended and is_object(body)
        elif expected.calls:
            right = self.add_calls(expected.calls, body)
        else:
            right = body == expected.answer
        self.exact += right
        return right

    def add_calls(self, expected: tuple[Call, ...], body: str) -> bool:
        made = [parse_call(text) for text in CALL.findall(body)]
        wanted = [{"name": call.name, "arguments": dict(call.arguments)} for call in expected]
        self.calls_asked += 1
        self.valid_json += bool(made) and None not in made
        self.right_functions += names(made) == names(wanted)
        for i, call in enumerate(expected):
            got = made[i] if i < len(made) else None
            self.arguments += len(call.arguments)
            self.right_arguments += sum(has(got, key, item) for key, item in call.arguments.items())
        return made == wanted

    def __add__(self, other: Score) -> Score:
        return Score(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


def parse_call(text: str) -> dict[str, Any] | None:
    """Return a call, or None if the text is not a call's JSON."""
    try:
        call = json.loads(text)
    except json.JSONDecodeError:
        return None
    if isinstance(call, dict) and isinstance(call.get("arguments"), dict) and "name" in call:
        return call
    return None


def names(calls: Iterable[dict[str, Any] | None]) -> list[Any]:
    return [call and call["name"] for call in calls]


def has(call: dict[str, Any] | None, key: str, item: Any) -> bool:
    return call is not None and key in call["arguments"] and call["arguments"][key] == item
