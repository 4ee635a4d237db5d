"""The golden cases: outputs as models write them, and how each is to be read (README.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.mark.structures import ParameterSet

from eaglegate.text.events import FinishReason, Outcome

FOLDER = Path(__file__).parent / "golden"
ALONE = {"openai", "reasoning_openai_gptoss", "kimi_k3", "inkling", "muse", "muse_glimmer"}
"""Formats that frame whole messages: calls and thinking are read by the same frame."""
_MACRO = re.compile(r"⟦(?P<how>file|json) (?P<size>\d+)⟧")
_PIECE = re.compile(r"⟪(?P<token>.+?)⟫|(?P<cut>¦)|(?P<text>[^⟪¦]+)", re.DOTALL)


@dataclass(frozen=True)
class Marker:
    """One special or added token of the output, as opposed to text that spells it."""

    token: str

    def __str__(self) -> str:
        return self.token


Piece = Marker | str


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    outcome: Outcome
    id: str | None
    """Set where the model writes it."""


@dataclass(frozen=True)
class Format:
    """One file of cases and what its model's tokenizer knows."""

    name: str
    tool_parsers: tuple[str, ...]
    """The first is used throughout, the others are its aliases."""
    reasoning_parser: str | None
    arguments: str
    """``verbatim``: byte for byte. ``json``: the format is not JSON, so that only the JSON value
    counts, with its key order and number spelling."""
    eos: str | None
    """None: each case writes the token that ends it."""
    markers: tuple[str, ...]
    """Added tokens that decode as text."""
    special: tuple[str, ...]
    """Added tokens that do not decode as text."""


@dataclass(frozen=True)
class Case:
    format: Format
    """With what the case says otherwise."""
    name: str
    pieces: tuple[Piece, ...]
    cut_after: tuple[int, ...]
    """The case's own cuts of the output, in bytes of its text."""
    finish: FinishReason
    tools: Mapping[str, Any]
    reasoning: str
    content: str
    calls: tuple[Call, ...]
    note: str = ""
    source: str = ""
    """Where the output is from. Empty: it is an example of the format's definition."""
    defined: bool = False
    """Whether it is an example of the format's definition: those are cut in the most ways."""
    starts_in: str = "content"
    eos: bool = False

    @property
    def id(self) -> str:
        return f"{self.format.name}-{self.name}"

    @property
    def output(self) -> str:
        """The output as a case writes it, without its cuts."""
        return "".join(
            f"⟪{piece.token}⟫" if isinstance(piece, Marker) else piece for piece in self.pieces
        )

    @property
    def size(self) -> int:
        """Bytes of output."""
        return sum(len(str(piece).encode()) for piece in self.pieces)

    @property
    def finish_reason(self) -> str:
        if self.finish is FinishReason.STOP and self.calls:
            return "tool_calls"
        return self.finish.value

    def offered(self) -> list[dict[str, Any]]:
        """The tools in the form the OpenAI API has them."""
        return [
            {"type": "function", "function": {"name": name, "parameters": parameters}}
            for name, parameters in self.tools.items()
        ]


@cache
def filler(size: int) -> str:
    """``size`` characters of source code, as agents write files of it."""
    page = (FOLDER / "filler.txt").read_text(encoding="utf-8")
    return (page * (size // len(page) + 1))[:size]


def _expanded(text: str) -> str:
    def expand(found: re.Match[str]) -> str:
        text = filler(int(found["size"]))
        return text if found["how"] == "file" else json.dumps(text, ensure_ascii=False)[1:-1]

    return _MACRO.sub(expand, text)


def pieces_of(output: str) -> tuple[Piece, ...]:
    """An output as a case writes it."""
    return _pieces(output)[0]


def _pieces(output: str) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
    """``text⟪<token>⟫text¦text``: text, one token, and a place to cut."""
    pieces: list[Piece] = []
    cuts: list[int] = []
    size = 0
    for found in _PIECE.finditer(_expanded(output)):
        if found["cut"]:
            cuts.append(size)
            continue
        written = found["token"] or found["text"]
        size += len(written.encode())
        if found["token"]:
            pieces.append(Marker(found["token"]))
        elif pieces and isinstance(pieces[-1], str):
            pieces[-1] += written  # a cut does not change the tokens
        else:
            pieces.append(written)
    return tuple(pieces), tuple(cuts)


def _calls(described: list[dict[str, str]]) -> Iterator[Call]:
    for call in described:
        yield Call(
            name=call["name"],
            arguments=_expanded(call["arguments"]),
            outcome=Outcome(call.get("outcome", "valid")),
            id=call.get("id"),
        )


def _case(form: Format, described: Mapping[str, Any], tools: Mapping[str, Any]) -> Case:
    pieces, cuts = _pieces(described["output"])
    finish = FinishReason(described.get("finish", "stop"))
    return Case(
        format=_form(form, described),
        name=described["name"],
        pieces=pieces,
        cut_after=cuts,
        finish=finish,
        tools=_tools(described.get("tools", list(tools)), tools),
        reasoning=_expanded(described.get("reasoning", "")),
        content=_expanded(described.get("content", "")),
        calls=tuple(_calls(described.get("calls", []))),
        defined=described.get("defined", "source" not in described),
        eos=described.get("eos", finish is FinishReason.STOP and form.eos is not None),
        **{name: described[name] for name in ("note", "source", "starts_in") if name in described},
    )


def _form(form: Format, described: Mapping[str, Any]) -> Format:
    """The format with the added tokens and the reasoning parser that a case names itself."""
    if "markers" in described:
        form = replace(form, markers=tuple(described["markers"]), special=())
    return replace(form, reasoning_parser=described.get("reasoning_parser", form.reasoning_parser))


def _tools(chosen: Any, usual: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some of the usual tools by their names, or a case's own."""
    own: Mapping[str, Any] = chosen if isinstance(chosen, dict) else {n: usual[n] for n in chosen}
    return own


def written_case(
    parser: str,
    output: str,
    calls: Sequence[tuple[str, Any, str]] = (),
    content: str = "",
    reasoning: str = "",
    *,
    thinks: str | None = None,
    finish: FinishReason = FinishReason.STOP,
    tools: Mapping[str, Any] | None = None,
) -> Case:
    """A case that a test writes, in a vocabulary of the markers that its output has as tokens.

    ``calls`` are names, arguments as objects or as text, and outcomes.
    """
    pieces, cuts = _pieces(output)
    markers = tuple(dict.fromkeys(piece.token for piece in pieces if isinstance(piece, Marker)))
    return Case(
        format=Format(parser, (parser,), thinks, "json", None, markers, ()),
        name="written",
        pieces=pieces,
        cut_after=cuts,
        finish=finish,
        tools=usual_tools() if tools is None else tools,
        reasoning=reasoning,
        content=content,
        calls=tuple(
            Call(
                name, given if isinstance(given, str) else json.dumps(given), Outcome(outcome), None
            )
            for name, given, outcome in calls
        ),
    )


@cache
def usual_tools() -> Mapping[str, Any]:
    """The tools that a case is offered which names none."""
    loaded: Mapping[str, Any] = _yaml(FOLDER / "tools.yaml")
    return loaded


def _yaml(path: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


@cache
def _files() -> tuple[tuple[Format, tuple[Case, ...]], ...]:
    tools = usual_tools()
    paths = [path for path in sorted(FOLDER.glob("*.yaml")) if path.name != "tools.yaml"]
    return tuple(_file(path, tools) for path in paths)


@cache
def corpus() -> tuple[Case, ...]:
    """Every case of every file."""
    return tuple(case for _, cases in _files() for case in cases)


def formats() -> dict[str, Format]:
    """The formats as the heads of their files describe them, by name."""
    return {form.name: form for form, _ in _files()}


def by_format() -> list[ParameterSet]:
    """The cases of each format as one parameter: thousands of tests cost more than their cases."""
    return [pytest.param(cases, id=form.name) for form, cases in _files()]


HEAD = {"tool_parsers", "reasoning_parser", "arguments", "eos", "markers", "special", "cases"}


def _file(path: Path, tools: Mapping[str, Any]) -> tuple[Format, tuple[Case, ...]]:
    described = _yaml(path)
    if missing := HEAD - described.keys():
        raise ValueError(f"{path.name}: the head lacks {sorted(missing)}; README.md describes it")
    form = Format(
        name=path.stem,
        tool_parsers=tuple(described["tool_parsers"]),
        reasoning_parser=described["reasoning_parser"],
        arguments=described["arguments"],
        eos=described["eos"],
        markers=tuple(described["markers"]),
        special=tuple(described["special"]),
    )
    return form, tuple(_case(form, case, tools) for case in described["cases"])
