"""What ``eaglegate parse`` shows of one answer: tokens, phases, events, the message, outcomes.

Plain text, one thing a line; on a terminal with colours, unless NO_COLOR is set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, TextIO

from engine.events import ParserEvent, Phase, ToolCallEnd

_COLORS = {
    Phase.REASONING: "36",
    Phase.CONTENT: "32",
    Phase.TOOL_CALL: "33",
    "marker": "1;35",
    "good": "1;32",
    "bad": "1;31",
    "dim": "2",
}
_GOOD = frozenset({"valid", "unchecked"})


def wants_color(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR")


class ParseReport:
    """Writes to ``out``."""

    def __init__(self, out: TextIO, color: bool) -> None:
        self._out = out
        self._color = color

    def paint(self, text: str, kind: str) -> str:
        return f"\033[{_COLORS[kind]}m{text}\033[0m" if self._color else text

    def add_step(
        self, tokens: Sequence[tuple[int, str, bool]], phase: Phase, events: Sequence[ParserEvent]
    ) -> None:
        """Tokens as id, text and whether they are tokens of their own; what came of them."""
        for token_id, text, is_added in tokens:
            shown = self.paint(repr(text), "marker" if is_added else phase)
            self._print(f"{token_id:>7}  {shown}  {self.paint(phase.value, 'dim')}")
        self.add_events(events)

    def add_events(self, events: Sequence[ParserEvent]) -> None:
        for event in events:
            text = str(event)
            if isinstance(event, ToolCallEnd):
                text = self.paint(text, "good" if event.outcome in _GOOD else "bad")
                if event.written is not None:
                    text += f"\n  written: {event.written!r}"
            self._print(text)

    def add_message(self, message: Mapping[str, Any]) -> None:
        for number, call in enumerate(message["tool_calls"]):
            outcome = str(call["outcome"])
            painted = self.paint(outcome, "good" if outcome in _GOOD else "bad")
            self._print(f"call {number}: {call['name']}: {painted}")
        self._print(json.dumps(message, ensure_ascii=False, indent=2))

    def compare(self, ours: Mapping[str, Any], theirs: Mapping[str, Any], title: str) -> bool:
        """Shows where two messages differ, and says whether they do."""
        self._print(f"{title}:")
        rows = [(part, ours[part], theirs[part]) for part in ("reasoning", "content")]
        calls = zip_longest(_calls(ours), _calls(theirs))
        rows += [(f"call {number}", *pair) for number, pair in enumerate(calls)]
        differing = [row for row in rows if self._compare_row(*row)]
        return bool(differing)

    def _compare_row(self, part: str, ours: Any, theirs: Any) -> bool:
        if ours == theirs:
            self._print(f"  {part}: {self.paint('same', 'good')}")
            return False
        if _means(ours) == _means(theirs):
            self._print(f"  {part}: {self.paint('same but for white space', 'good')}")
            return False
        self._print(f"  {part}: {self.paint('differs', 'bad')}")
        self._print(f"    here {ours!r}\n    vLLM {theirs!r}")
        return True

    def _print(self, line: str) -> None:
        print(line, file=self._out)


def _calls(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(call["name"], call["arguments"]) for call in message["tool_calls"]]


def _means(part: Any) -> Any:
    """A text without the white space around it, or a call with its arguments read."""
    if isinstance(part, str):
        return part.strip()
    if part is None:
        return None
    name, arguments = part
    try:
        return name, json.loads(arguments)
    except ValueError:
        return name, arguments
