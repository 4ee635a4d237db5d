"""Answers of a prescribed form whose content the request does not give.

A grammar or a forced tool makes a model write such answers, and it must also end them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eaglegate.lab.training.data.source import Phrasings, Source
from eaglegate.lab.training.data.turn import (
    PlainTurn,
    Spans,
    Tool,
    ToolTurn,
    listed,
    make_tool,
    to_json,
)
from eaglegate.lab.training.data.values import fields, outcome, text_name

KINDS = "joke poem riddle tweet slogan review tale song speech fact plan quiz toast".split()
PARTS = (
    ("setup", "punchline"),
    ("title", "text"),
    ("opening", "ending"),
    ("question", "answer"),
    ("text",),
    ("title", "body", "author"),
)
ASK = Phrasings(
    "Tell me a {k} about {t}.",
    "Write a {k} about {t}.",
    "Give me a {k} about {t}.",
    "Make up a {k} about {t}",
    "I want a {k} about {t}.",
    "{k} about {t} please",
    "A {k} on {t}.",
)
IN_JSON = (
    "Return the result as JSON with the keys {}.",
    "Return the result as a JSON with {} keys. Return nothing other than JSON.",
    "Answer in JSON with {}.",
    "Respond only with JSON: {}.",
    "Use JSON with the keys {}.",
)
TAILS = (
    "",
    "",
    "",
    ", keep it short",
    ", include the {}",
    ", no {}",
    ", and nothing else",
    " please",
)


def wish(source: Source) -> str:
    """Make a request for something that the model cannot invent."""
    kind = source.pick(KINDS) if source.chance(0.7) else source.plain_word()
    request = source.ask(ASK, k=kind, t=source.phrase(1, 2))
    if source.chance(0.2):
        request = request.replace(f"a {kind}", f"the {source.pick(source.pick(PARTS))} of a {kind}")
    period = "." if request.endswith(".") else ""
    return request.rstrip(".") + source.pick(TAILS).format(source.pick(source.pick(PARTS))) + period


def invented_json(source: Source) -> PlainTurn:
    """`Tell me a joke about cats. Return JSON with the keys setup and punchline.`"""
    kind, topic = source.pick(KINDS), source.phrase(1, 2)
    keys = list(source.pick(PARTS)) if source.chance(0.5) else []
    while not keys or source.chance(0.3):
        keys.append(text_name(source))
    quote = source.pick(["", "'", '"', "`"])
    request = source.ask(ASK, k=kind, t=topic).rstrip(".")
    form = source.pick(IN_JSON).format(listed([f"{quote}{key}{quote}" for key in keys]))
    answer = {key: content(key, {"type": "string"}, topic) for key in keys}
    return PlainTurn(f"{request}. {form}", "The user wants a JSON object.", to_json(answer))


def invented_call(source: Source) -> ToolTurn:
    """`Tell me a joke about cats`, with a tool that takes the joke's parts."""
    kind = source.pick(KINDS) if source.chance(0.6) else source.plain_word()
    if source.chance(0.5):
        properties: dict[str, Any] = {key: {"type": "string"} for key in source.pick(PARTS)}
    else:
        properties = fields(source, source.pick([1, 2, 2, 3]), allows_nesting=False)
    name = source.pick([kind, kind.capitalize(), f"write_{kind}", f"{kind}_{source.plain_word()}"])
    description = source.pick([f"{kind.capitalize()} to tell the user.", f"Write a {kind}."])
    topic = source.phrase(1, 2)
    arguments = {key: content(key, schema, topic) for key, schema in properties.items()}
    result, report = outcome(source)
    user = source.ask(ASK, k=kind, t=topic)
    tool = make_tool(name, description, properties)
    return ToolTurn(tool, user, [arguments], [result], report)


def content(key: str, schema: Mapping[str, Any], topic: str) -> Any:
    """Make a value for a parameter that the request does not mention."""
    if "enum" in schema:
        return schema["enum"][0]
    defaults: dict[str, Any] = {"integer": 1, "number": 0.5, "boolean": True, "array": [topic]}
    return defaults.get(schema["type"], f"A {key} about {topic}.")


def can_be_held(turn: PlainTurn) -> bool:
    return "\n" not in turn.answer and '"' not in turn.answer and len(turn.answer) < 300


def constrain_answer(
    source: Source, turn: PlainTurn, tools: Sequence[Tool] | None, ragged_share: float
) -> tuple[str, Spans]:
    """Put the turn's answer into JSON whose keys only the grammar knows, or into a forced call."""
    gaps = COMPACT if source.chance(0.8) else SPACED
    if ragged_share and source.chance(ragged_share):
        gaps = Gaps(*(blanks(source) for _ in range(4)))
    sheet = Sheet(turn.answer, gaps)
    if tools and source.chance(0.7):
        function = source.pick(tools)["function"]
        sheet.text = f'<tool_call>\n{{"name": "{function["name"]}", "arguments": '
        sheet.fill(function["parameters"])
        sheet.text += "}\n</tool_call>"
    else:
        sheet.fill({"properties": fields(source, source.pick([1, 1, 2, 2, 3]))})
    return sheet.text, tuple(sheet.spans)


@dataclass(frozen=True)
class Gaps:
    """White space of a JSON object, by the character before it."""

    brace: str = ""
    key: str = ""
    colon: str = ""
    comma: str = ""


COMPACT = Gaps()
"""Gaps of a grammar that allows no white space between values."""
SPACED = Gaps(colon=" ", comma=" ")


def blanks(source: Source) -> str:
    """Make white space as written by a model that waits for a grammar's key with nothing to say."""
    if source.chance(0.4):
        return ""
    run = source.pick([" ", "\n", " " * source.number(1, 8), "\n" * source.number(1, 4)])
    return run + " " * source.pick([0, 0, 1, source.number(1, 4)])


class Sheet:
    """JSON object that a grammar and a model write together."""

    def __init__(self, answer: str, gaps: Gaps) -> None:
        self.gaps = gaps
        numbers = re.findall(r"[0-9]+", answer) or ["1"]
        result = int(numbers[-1])
        self.answer = answer
        self.values = {"integer": result, "number": result, "boolean": True}
        self.text = ""
        self.spans: list[tuple[int, int]] = []

    def fill(self, schema: Mapping[str, Any]) -> None:
        """Write a value. Keys are forced; content and separators are the model's own."""
        if "properties" in schema:
            for place, (key, inner) in enumerate(schema["properties"].items()):
                separator = f",{self.gaps.comma}" if place else f"{{{self.gaps.brace}"
                self.text += f'{separator}"{key}'
                self.say('"', 0)
                self.text += self.gaps.key
                self.say(":", 0)
                self.text += self.gaps.colon
                self.fill(inner)
            self.text += "}" if schema["properties"] else "{}"
        elif "enum" in schema:
            self.text += f'"{schema["enum"][0]}"'
        elif schema["type"] == "array":
            self.text += "["
            self.fill(schema["items"])
            self.text += "]"
        elif schema["type"] == "string":
            self.say(f'"{self.answer}"')
        else:
            self.say(to_json(self.values[schema["type"]]))

    def say(self, text: str, num_after: int = 1) -> None:
        """Write a text of the model, with ``num_after`` characters of the following text, which
        separate values.
        """
        start = len(self.text)
        self.text += text
        self.spans.append((start, len(self.text) + num_after))
