"""Reads the calls of BFCL in every format, whole and damaged, and prints how many come back.

    python -m tests.text.parsing.held_out [--entries N] [--damages N] [--formats NAME ...]
        [--templates PACKAGE:NAME ...]

The answers are written by ``round_trip_writers`` and by the chat templates of ``own_templates``.
The calls and their tools are those of the Berkeley Function Calling Leaderboard, which the package
``bfcl-eval`` carries; nobody wrote them for this project.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglegate.text.events import FinishReason, Phase
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import Folded, fold
from tests.clients.install import install
from tests.clients.pins import python
from tests.text.parsing.damages import canonical, find_structural
from tests.text.parsing.golden_corpus import Format, Marker, Piece, formats, pieces_of
from tests.text.parsing.golden_cuts import every, randomly
from tests.text.parsing.golden_reading import joined, known
from tests.text.parsing.golden_tokenizer import encode
from tests.text.parsing.own_templates import PLACES, Own, open_template
from tests.text.parsing.round_trip_writers import WRITTEN, Call

BFCL = python("bfcl", "the calls of BFCL", "bfcl-eval==2026.3.23", lean=True)
CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
CONTENT, THOUGHT = "I'll look that up.", "They want to know."


@dataclass(frozen=True)
class Entry:
    """One question's tools, and the calls that answer it."""

    id: str
    tools: Sequence[Mapping[str, Any]]
    calls: Sequence[Call]


def load_entries(folder: Path) -> Iterator[Entry]:
    for category in CATEGORIES:
        name = f"BFCL_v4_{category}.json"
        answers = {
            line["id"]: line["ground_truth"] for line in _lines(folder / "possible_answer" / name)
        }
        for line in _lines(folder / name):
            calls = [
                (called, _first(options))
                for call in answers.get(line["id"], ())
                for called, options in call.items()
            ]
            if calls:
                yield Entry(line["id"], line["function"], calls)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _first(options: Mapping[str, Any]) -> dict[str, Any]:
    """The first of the values that the benchmark accepts; "" stands for no value."""
    return {
        key: _nested(values[0]) for key, values in options.items() if values and values[0] != ""
    }


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        is_options = all(isinstance(inner, list) for inner in value.values())
        return _first(value) if is_options else value
    return [_nested(item) for item in value] if isinstance(value, list) else value


def cut_into_pieces(form: Format, text: str) -> list[Piece]:
    """The text with the markers that the format's tokenizer has as tokens."""
    tokens = sorted((*form.markers, *form.special), key=len, reverse=True)
    if not tokens:
        return [text] if text else []
    parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text)
    return [Marker(part) if part in tokens else part for part in parts if part]


def cuttings(form: Format, pieces: Sequence[Piece], seed: int) -> list[Any]:
    """Six: one, three and eight tokens a step, random steps, single letters, all at once."""
    tokenizer = known(form)[0]
    words = encode(tokenizer, pieces)
    letters = encode(tokenizer, pieces, in_letters=True)
    return [
        *(every(words, size) for size in (1, 3, 8)),
        randomly(words, seed),
        every(letters, 1),
        every(words, len(words) or 1),
    ]


def read(
    form: Format,
    entry: Entry,
    steps: Sequence[Sequence[int]],
    finish: FinishReason,
    starts_in: Phase = Phase.CONTENT,
) -> list[Any]:
    parser = make_parser(
        known(form)[1],
        tool_parser=form.tool_parsers[0],
        reasoning_parser=form.reasoning_parser,
        starts_in=starts_in,
        tools=[{"type": "function", "function": tool} for tool in entry.tools],
    )
    events = [event for step in steps for event in parser.feed(step)]
    return [*events, *parser.flush(finish)]


def called(answer: Folded) -> list[tuple[str, Any, str]]:
    return [(call.name, _value(call.arguments), str(call.outcome)) for call in answer.calls]


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@dataclass
class Tally:
    """Readings of one format's answers, counted."""

    ordinary: int = 0
    right: int = 0
    depends: int = 0
    cut: int = 0
    cut_right: int = 0
    refused: int = 0
    """Answers that the template itself cannot write."""
    damages: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts by the kind of the damage and its outcome."""

    def count(self, fate: str) -> int:
        return sum(num for (_, met), num in self.damages.items() if met == fate)


MEANT, SHOWN, SILENT = "as meant", "shown", "silent"


def measure(form: Format, entries: Sequence[Entry], num_damages: int) -> Tally:
    written, dice, tally = WRITTEN[form.name], random.Random(form.name), Tally()
    for entry in entries:
        has_content = written.line is not None and dice.random() < 0.5
        content = CONTENT if has_content else ""
        pieces = cut_into_pieces(form, written.write(content, entry.calls))
        _read_whole(tally, form, entry, pieces, content)
        _read_cut_off(tally, form, entry, pieces, dice)
        _read_damaged(tally, form, entry, pieces, dice, num_damages)
    return tally


def measure_template(own: Own, entries: Sequence[Entry], seed: str) -> Tally:
    """Read answers of a model's own template, half of them with content, half with thinking."""
    dice, tally = random.Random(seed), Tally()
    for entry in entries:
        if "one" in own.takes and len(entry.calls) > 1:
            continue
        said = (CONTENT if dice.random() < 0.5 else "", THOUGHT if dice.random() < 0.5 else "")
        try:
            answer = own.write(*said, entry)
        except ValueError as error:
            tally.refused += 1
            print(f"{seed}: {entry.id}: the template refuses: {error}")
            continue
        phase = Phase.REASONING if answer.thinks else Phase.CONTENT
        pieces = cut_into_pieces(own.format, answer.text)
        streams = [
            read(own.format, entry, steps, FinishReason.STOP, phase)
            for steps in cuttings(own.format, pieces, 1)
        ]
        first, *others = (joined(stream, written_ids=False) for stream in streams)
        tally.depends += any(other != first for other in others)
        for got in map(fold, streams):
            said_back = got.content.strip(), got.reasoning.strip()
            is_right = called(got) == wanted(entry)
            is_right &= said_back == (answer.content, answer.reasoning)
            tally.ordinary += 1
            tally.right += is_right
        if not is_right:
            print(f"{seed}: {entry.id}: {answer.text!r}: {called(got)} {said_back}")
    return tally


def wanted(entry: Entry) -> list[tuple[str, Any, str]]:
    return [(name, dict(arguments), "valid") for name, arguments in entry.calls]


def _read_whole(
    tally: Tally, form: Format, entry: Entry, pieces: Sequence[Piece], content: str
) -> None:
    streams = [read(form, entry, steps, FinishReason.STOP) for steps in cuttings(form, pieces, 1)]
    first, *others = (joined(stream, written_ids=False) for stream in streams)
    tally.depends += any(other != first for other in others)
    for answer in map(fold, streams):
        said = answer.content.strip(), answer.reasoning
        tally.ordinary += 1
        tally.right += called(answer) == wanted(entry) and said == (content, "")


def _read_cut_off(
    tally: Tally, form: Format, entry: Entry, pieces: Sequence[Piece], dice: random.Random
) -> None:
    """Three beginnings: whole calls stand, one is cut off at most, and nothing is invented."""
    ids = encode(known(form)[0], pieces)
    whole = fold(read(form, entry, [ids], FinishReason.STOP))
    for _ in range(3):
        steps = every(ids[: dice.randrange(1, len(ids))], 3)
        answer = fold(read(form, entry, steps, FinishReason.LENGTH))
        tally.cut += 1
        tally.cut_right += _begins(answer, whole)


def _begins(answer: Folded, whole: Folded) -> bool:
    if len(answer.calls) > len(whole.calls):
        return False
    for at, (got, full) in enumerate(zip(answer.calls, whole.calls, strict=False)):
        is_same = (got.name, _value(got.arguments)) == (full.name, _value(full.arguments))
        is_last = at == len(answer.calls) - 1
        is_begun = got.name == full.name and full.arguments.startswith(got.arguments.rstrip("}"))
        if not is_same and not (is_last and is_begun and got.outcome == "truncated"):
            return False
    return True


def _read_damaged(
    tally: Tally,
    form: Format,
    entry: Entry,
    pieces: Sequence[Piece],
    dice: random.Random,
    num: int,
) -> None:
    output = "".join(f"⟪{piece}⟫" if isinstance(piece, Marker) else piece for piece in pieces)
    pairs = [(name, json.dumps(arguments)) for name, arguments in entry.calls]
    changes = find_structural(output, pairs)
    expected = Counter(canonical(*pair) for pair in pairs)
    for change in dice.sample(changes, min(num, len(changes))):
        ids = encode(known(form)[0], pieces_of(change.output))
        answer = fold(read(form, entry, every(ids, 3), FinishReason.STOP))
        valid = [call for call in answer.calls if call.outcome == "valid"]
        got = Counter(canonical(call.name, call.arguments) for call in valid)
        fate = SILENT if got - expected else MEANT if got == expected else SHOWN
        tally.damages[change.kind, fate] += 1
        if fate == SILENT:
            print(f"silent: {form.name}: {change.kind} {change.piece!r}: {change.output}")
            print(*(got - expected), sep="\n")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "-"


def tabulate(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """One row a format, and one for all of them."""
    total = Tally()
    for tally in tallies.values():
        for name in ("ordinary", "right", "depends", "cut", "cut_right"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
        total.damages += tally.damages
    yield "| format | ordinary | by cutting | cut off | damaged: as meant | shown | silent |"
    yield "|---|---|---|---|---|---|---|"
    for name, tally in [*tallies.items(), ("all", total)]:
        damages = sum(tally.damages.values())
        cells = (
            f"`{name}`" if name in tallies else "**all**",
            f"{tally.right} of {tally.ordinary}",
            str(tally.depends),
            f"{tally.cut_right} of {tally.cut}",
            _percent(tally.count(MEANT), damages),
            _percent(tally.count(SHOWN), damages),
            f"{tally.count(SILENT)} of {damages}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| one piece | as meant | shown | silent |"
    yield "|---|---|---|---|"
    for kind in sorted({kind for kind, _ in total.damages}):
        met = {fate: total.damages[kind, fate] for fate in (MEANT, SHOWN, SILENT)}
        whole = sum(met.values())
        shares = (_percent(met[MEANT], whole), _percent(met[SHOWN], whole), str(met[SILENT]))
        yield f"| {KINDS[kind]} | {' | '.join(shares)} |"


def tabulate_templates(tallies: Mapping[str, Tally]) -> Iterator[str]:
    """One row a package and format, and one for all of them."""
    rows: dict[tuple[str, str], list[str]] = {}
    for place in tallies:
        package, _, name = place.partition(":")
        rows.setdefault((package, PLACES[place][0]), []).append(name)
    yield "| package | format | templates | ordinary | by cutting | refused by the template |"
    yield "|---|---|---|---|---|---|"
    for (package, form), names in rows.items():
        met = [tallies[f"{package}:{name}"] for name in names]
        yield f"| `{package}` | `{form}` | {', '.join(names)} | {_sum(met)} |"
    yield f"| **all** | | {len(tallies)} | {_sum(list(tallies.values()))} |"


def _sum(tallies: Sequence[Tally]) -> str:
    ordinary, right = (sum(getattr(one, name) for one in tallies) for name in ("ordinary", "right"))
    depends, refused = (
        sum(getattr(one, name) for one in tallies) for name in ("depends", "refused")
    )
    return f"{right} of {ordinary} | {depends} | {refused}"


KINDS = {
    "drop": "is missing",
    "double": "stands twice",
    "insert": "is inserted",
    "letter": "is misspelt",
}


def find_entries(data: Path) -> list[Entry]:
    """The entries whose answers fit their own schemas."""
    form = formats()["hermes"]
    fitting = []
    for entry in load_entries(data):
        pieces = cut_into_pieces(form, WRITTEN["hermes"].write("", entry.calls))
        ids = encode(known(form)[0], pieces)
        if called(fold(read(form, entry, [ids], FinishReason.STOP))) == wanted(entry):
            fitting.append(entry)
    return fitting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=500, help="questions for each format")
    parser.add_argument("--damages", type=int, default=5, help="damages of each answer")
    parser.add_argument("--formats", nargs="*", default=list(WRITTEN))
    parser.add_argument("--templates", nargs="*", default=list(PLACES), help="PACKAGE:NAME")
    parser.add_argument("--data", type=Path, help="the package's folder `data`")
    given = parser.parse_args()
    data = given.data or next(install(BFCL).glob("lib/python*/site-packages/bfcl_eval/data"))
    entries = find_entries(data)
    tallies = {}
    for name in given.formats:
        chosen = random.Random(name).sample(entries, min(given.entries, len(entries)))
        tallies[name] = measure(formats()[name], chosen, given.damages)
    if tallies:
        print(*tabulate(tallies), sep="\n")
    own = {}
    for place in given.templates:
        chosen = random.Random(place).sample(entries, min(given.entries, len(entries)))
        own[place] = measure_template(open_template(place), chosen, place)
    if own:
        print(*tabulate_templates(own), sep="\n")


if __name__ == "__main__":
    main()
