"""Outputs that models damage, and values that quote their own format: one table, every cutting.

``⟪marker⟫`` is one added token, everything else ordinary text. The rules are in docs/parsers.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.types import FinishReason
from server.parsing.fold import Folded, fold
from server.parsing.parser import make_parser
from server.parsing.registry import reasoning_format, tool_format
from server.parsing.vocabulary import Vocabulary
from tests.server.parsing.golden_corpus import Marker, pieces_of
from tests.server.parsing.golden_cuts import every, randomly
from tests.server.parsing.golden_tokenizer import encode, tokenizer

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS: dict[str, Any] = {
    "ping": {"type": "object", "properties": {}},
    "city": {"type": "object", "properties": {"city": STRING}, "required": ["city"]},
    "write": {"type": "object", "properties": {"path": STRING, "text": STRING}},
    "count": {"type": "object", "properties": {"n": INTEGER, "tags": {"type": "array"}}},
}


@dataclass(frozen=True)
class Damage:
    id: str
    parser: str
    output: str
    calls: tuple[tuple[str, Any, str], ...] = ()
    """Name, arguments as an object or as text, and outcome."""
    content: str = ""
    reasoning: str = ""
    thinks: str | None = None
    finish: FinishReason = FinishReason.STOP
    tools: dict[str, Any] | None = field(default_factory=lambda: TOOLS)


def read(case: Damage) -> list[Folded]:
    """The answer, at several cuttings."""
    pieces = pieces_of(case.output)
    form = tool_format(case.parser)
    own = (*form.markers, *reasoning_format(case.thinks).markers)
    used = [piece.token for piece in pieces if isinstance(piece, Marker)]
    made = tokenizer(tuple(m for m in dict.fromkeys(used) if m in own or m == form.fragment))
    ids = encode(made, pieces)
    vocabulary = Vocabulary.from_tokenizers(made)
    found = []
    for steps in (every(ids, 1), every(ids, 3), every(ids, len(ids) or 1), randomly(ids, 1)):
        parser = make_parser(
            vocabulary,
            tool_parser=case.parser,
            reasoning_parser=case.thinks,
            tools=None
            if case.tools is None
            else [{"name": name, "parameters": schema} for name, schema in case.tools.items()],
        )
        events = [event for step in steps for event in parser.feed(step)]
        found.append(fold([*events, *parser.flush(case.finish)]))
    return found


def check(case: Damage) -> None:
    for folded in read(case):
        assert folded.content == case.content
        assert folded.reasoning == case.reasoning
        got = [(c.name, c.arguments, str(c.outcome)) for c in folded.calls]
        wanted = [
            (name, arguments if isinstance(arguments, str) else json.dumps(arguments), outcome)
            for name, arguments, outcome in case.calls
        ]
        loose = [_parsed(call) for call in got]
        assert got == wanted or loose == [_parsed(call) for call in wanted]


def _parsed(call: tuple[str, str, str]) -> tuple[str, Any, str]:
    """Arguments by value, duplicate keys and their order included."""
    name, arguments, outcome = call
    try:
        return name, json.loads(arguments, object_pairs_hook=list), outcome
    except ValueError:
        return name, arguments, outcome


def qwen(value: str, name: str = "text", tool: str = "write", close: str = "</parameter>") -> str:
    return (
        f"⟪<tool_call>⟫\n<function={tool}>\n<parameter={name}>\n{value}\n{close}\n"
        "</function>\n⟪</tool_call>⟫"
    )


def minimax(value: str) -> str:
    return (
        '⟪<minimax:tool_call>⟫\n<invoke name="write">\n'
        f'<parameter name="text">{value}</parameter>\n'
        "</invoke>\n⟪</minimax:tool_call>⟫"
    )


def glm(value: str) -> str:
    return (
        "⟪<tool_call>⟫write\n⟪<arg_key>⟫text⟪</arg_key>⟫\n"
        f"⟪<arg_value>⟫{value}⟪</arg_value>⟫\n⟪</tool_call>⟫"
    )


def hermes(value: str) -> str:
    return f'⟪<tool_call>⟫\n{{"name": "write", "arguments": {{"text": "{value}"}}}}\n⟪</tool_call>⟫'


def kimi(value: str) -> str:
    return (
        "⟪<|tool_calls_section_begin|>⟫⟪<|tool_call_begin|>⟫functions.write:0"
        f'⟪<|tool_call_argument_begin|>⟫{{"text": "{value}"}}'
        "⟪<|tool_call_end|>⟫⟪<|tool_calls_section_end|>⟫"
    )


def deepseek_v3(value: str) -> str:
    return (
        "⟪<｜tool▁calls▁begin｜>⟫⟪<｜tool▁call▁begin｜>⟫function⟪<｜tool▁sep｜>⟫write\n```json\n"
        f'{{"text": "{value}"}}\n```⟪<｜tool▁call▁end｜>⟫⟪<｜tool▁calls▁end｜>⟫'
    )


def mistral(value: str) -> str:
    return f'⟪[TOOL_CALLS]⟫write⟪[ARGS]⟫{{"text": "{value}"}}'


def granite(value: str) -> str:
    return f'⟪<|tool_call|>⟫[{{"name": "write", "arguments": {{"text": "{value}"}}}}]'


WRITERS = {
    "qwen3_coder": (qwen, ("<tool_call>", "</tool_call>")),
    "minimax_m2": (minimax, ("<minimax:tool_call>", "</minimax:tool_call>")),
    "glm45": (
        glm,
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "hermes": (hermes, ("<tool_call>", "</tool_call>")),
    "kimi_k2": (
        kimi,
        ("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    ),
    "deepseek_v3": (
        deepseek_v3,
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    ),
    "mistral": (mistral, ("[TOOL_CALLS]", "[ARGS]")),
    "granite": (granite, ("<|tool_call|>",)),
}
QUOTING = [
    Damage(
        f"{parser}-{marker}-{place}",
        parser,
        writer(value),
        (("write", {"text": value.replace("⟪", "").replace("⟫", "")}, "valid"),),
    )
    for parser, (writer, markers) in WRITERS.items()
    for marker in markers
    for place, value in {
        "first": f"⟪{marker}⟫ is it",
        "inside": f"Write ⟪{marker}⟫ x",
        "twice": f"a⟪{marker}⟫⟪{marker}⟫b ⟪{marker}⟫ c",
        "spelled": f"Write {marker} x",
    }.items()
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in QUOTING])
def test_a_value_may_quote_any_marker(case):
    check(case)


CALL = (
    "⟪<tool_call>⟫\n<function=city>\n<parameter=city>\nP\n</parameter>\n</function>\n⟪</tool_call>⟫"
)
FORGOTTEN = [
    Damage(
        "quoted-call",
        "qwen3_coder",
        qwen(f"see {CALL} there"),
        (("write", {"text": f"see {CALL} there".replace("⟪", "").replace("⟫", "")}, "valid"),),
    ),
    Damage(
        "value-not-closed",
        "qwen3_coder",
        "⟪<tool_call>⟫\n<function=city>\n<parameter=city>\nParis\n⟪</tool_call>⟫",
        (("city", {"city": "Paris\n"}, "malformed"),),
    ),
    Damage(
        "value-not-closed-then-a-call",
        "qwen3_coder",
        f"⟪<tool_call>⟫\n<function=city>\n<parameter=city>\nParis\n⟪</tool_call>⟫\n{CALL}",
        (("city", {"city": "Paris\n"}, "malformed"), ("city", {"city": "P"}, "valid")),
    ),
    Damage(
        "glm-value-not-closed",
        "glm45",
        "⟪<tool_call>⟫write\n⟪<arg_key>⟫path⟪</arg_key>⟫\n⟪<arg_value>⟫a⟪</arg_value>⟫\n"
        "⟪<arg_key>⟫text⟪</arg_key>⟫\n⟪<arg_value>⟫Paris⟪</tool_call>⟫",
        (("write", {"path": "a", "text": "Paris"}, "malformed"),),
    ),
    Damage(
        "string-not-closed",
        "hermes",
        '⟪<tool_call>⟫\n{"name": "city", "arguments": {"city": "Paris\n⟪</tool_call>⟫',
        (("city", '{"city": "Paris\n', "malformed"),),
    ),
    Damage(
        "string-not-closed-then-a-call",
        "hermes",
        '⟪<tool_call>⟫{"name": "city", "arguments": {"city": "Paris ⟪</tool_call>⟫\n'
        '⟪<tool_call>⟫{"name": "ping", "arguments": {}}⟪</tool_call>⟫',
        (("city", '{"city": "Paris ', "malformed"), ("ping", {}, "valid")),
    ),
    Damage(
        "content-behind-a-quotation",
        "qwen3_coder",
        qwen("a ⟪</tool_call>⟫ b") + "\nDone.",
        (("write", {"text": "a </tool_call> b"}, "valid"),),
        content="Done.",
    ),
]
UNWRAPPED = [
    Damage(
        "function-alone",
        "qwen3_coder",
        "Look.\n<function=city>\n<parameter=city>\nP\n</parameter>\n</function>",
        (("city", {"city": "P"}, "valid"),),
        content="Look.",
    ),
    Damage(
        "function-and-the-closing-tag",
        "qwen3_coder",
        "<function=city>\n<parameter=city>\nP\n</parameter>\n</function>\n⟪</tool_call>⟫",
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "two-functions-then-text",
        "qwen3_coder",
        "<function=ping>\n</function>\n<function=ping></function>\nDone.",
        (("ping", {}, "valid"), ("ping", {}, "valid")),
        content="Done.",
    ),
    Damage(
        "function-that-is-not-offered",
        "qwen3_coder",
        "Try\n<function=nope>\n<parameter=city>",
        content="Try\n<function=nope>\n<parameter=city>",
    ),
    Damage(
        "function-in-prose",
        "qwen3_coder",
        "The tag `<function=city>\n<parameter=city>` opens it, <function=city> alone does not.",
        content="The tag `<function=city>\n<parameter=city>` opens it, "
        "<function=city> alone does not.",
    ),
    Damage(
        "invoke-alone",
        "minimax_m2",
        '<invoke name="city">\n<parameter name="city">P</parameter>\n</invoke>',
        (("city", {"city": "P"}, "valid"),),
    ),
    Damage(
        "dsml-invoke-alone",
        "deepseek_v32",
        "⟪｜DSML｜⟫".join(
            [
                "Look.\n\n<",
                'invoke name="city">\n<',
                'parameter name="city" string="true">P</',
                "parameter>\n</",
                "invoke>",
            ]
        ),
        (("city", {"city": "P"}, "valid"),),
        content="Look.",
    ),
]
CLOSES = [
    Damage(
        f"close-{close}",
        "qwen3_coder",
        qwen("Paris", "city", "city", close),
        (("city", {"city": "Paris"}, "valid"),),
    )
    for close in ("</parameter1>", "</parameters>", "</parameter=city>", "</parameter >")
] + [
    Damage(
        "close-quoted",
        "qwen3_coder",
        qwen("a </parameter1> b"),
        (("write", {"text": "a </parameter1> b"}, "valid"),),
    )
]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in [*FORGOTTEN, *UNWRAPPED, *CLOSES]]
)
def test_closing_and_opening_tags(case):
    check(case)
