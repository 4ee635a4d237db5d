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

    num_asked: int = 0
    num_ended: int = 0
    num_thinking: int = 0
    num_exact: int = 0
    calls_asked: int = 0
    valid_json: int = 0
    right_functions: int = 0
    arguments: int = 0
    right_arguments: int = 0

    def add(self, dialogue: Dialogue, text: str, has_ended: bool) -> bool:
        """Count one answer. Return True if all of it is right."""
        text = text.removesuffix("<|im_end|>")
        turn = TURN.match(text)
        body = turn.group(2) if turn else text
        self.num_asked += 1
        self.num_ended += has_ended
        self.num_thinking += turn is not None
        if dialogue.kind == "held":
            is_right = has_ended and is_object(body)
        elif dialogue.calls:
            is_right = self.add_calls(dialogue.calls, body)
        else:
            is_right = body == dialogue.answer
        self.num_exact += is_right
        return is_right

    def add_calls(self, calls: tuple[Call, ...], body: str) -> bool:
        calls_made = [parse_call(text) for text in CALL.findall(body)]
        call_dicts = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
        self.calls_asked += 1
        self.valid_json += bool(calls_made) and None not in calls_made
        self.right_functions += names(calls_made) == names(call_dicts)
        for i, call in enumerate(calls):
            call_made = calls_made[i] if i < len(calls_made) else None
            self.arguments += len(call.arguments)
            self.right_arguments += sum(
                has(call_made, key, item) for key, item in call.arguments.items()
            )
        return calls_made == call_dicts

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
