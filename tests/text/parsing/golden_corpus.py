"""The golden cases: outputs as models write them, and how each is to be read (README.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.mark.structures import ParameterSet

from eaglegate.text.events import FinishReason, Outcome

FOLDER = Path(__file__).parent / "golden"
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
    name: str
    note: str
    pieces: tuple[Piece, ...]
    cut_after: tuple[int, ...]
    """The case's own cuts of the output, in bytes of its text."""
    starts_in: str
    finish: FinishReason
    eos: bool
    tools: Mapping[str, Any]
    reasoning: str
    content: str
    calls: tuple[Call, ...]

    @property
    def id(self) -> str:
        return f"{self.format.name}-{self.name}"

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
        format=form,
        name=described["name"],
        note=described.get("note", ""),
        pieces=pieces,
        cut_after=cuts,
        starts_in=described.get("starts_in", "content"),
        finish=finish,
        eos=described.get("eos", finish is FinishReason.STOP and form.eos is not None),
        tools={name: tools[name] for name in described.get("tools", tools)},
        reasoning=_expanded(described.get("reasoning", "")),
        content=_expanded(described.get("content", "")),
        calls=tuple(_calls(described.get("calls", []))),
    )


def _yaml(path: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


@cache
def corpus() -> tuple[Case, ...]:
    """Every case of every file."""
    tools = _yaml(FOLDER / "tools.yaml")
    cases: list[Case] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if path.name != "tools.yaml":
            cases += _file(path, tools)
    return tuple(cases)


def formats() -> dict[str, Format]:
    """The formats that have cases, by name."""
    return {case.format.name: case.format for case in corpus()}


def by_format() -> list[ParameterSet]:
    """The cases of each format as one parameter: thousands of tests cost more than their cases."""
    files: dict[str, list[Case]] = {}
    for case in corpus():
        files.setdefault(case.format.name, []).append(case)
    return [pytest.param(cases, id=name) for name, cases in files.items()]


def _file(path: Path, tools: Mapping[str, Any]) -> list[Case]:
    described = _yaml(path)
    form = Format(
        name=path.stem,
        tool_parsers=tuple(described["tool_parsers"]),
        reasoning_parser=described["reasoning_parser"],
        arguments=described["arguments"],
        eos=described["eos"],
        markers=tuple(described["markers"]),
        special=tuple(described["special"]),
    )
    return [_case(form, case, tools) for case in described["cases"]]
