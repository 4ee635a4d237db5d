"""``eaglegate drafts compare``: which draft suits the captured traffic, without serving any.

eaglegate drafts compare CAPTURE --draft old=DIR --draft new=DIR [--target MODEL] --out FOLDER

The target reads every captured answer once, and every draft is unrolled at every position of it.
Interrupted, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.speculation.drafts import fingerprint_draft
from engine.speculation.inspection import SpeculationReport, inspect_draft
from measure.drafts import (
    ALL,
    AnswerFacts,
    CostTable,
    DraftReplay,
    compare_pair,
    estimate_live,
    summarise_draft,
    walk_answer,
)
from measure.drafts_report import format_report
from measure.statistics import Estimate
from observability.capture.files import make_cipher, read_keys, read_records
from observability.capture.record import CapturedChoice, CaptureError, CaptureRecord

DEMO = Path(__file__).parent.parent / "engine" / "demo"
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")


class CompareError(ValueError):
    """The comparison cannot be made; the message says why."""


@dataclass(frozen=True)
class Answer:
    """One captured answer that can be unrolled."""

    facts: AnswerFacts
    prompt: tuple[int, ...]
    choice: CapturedChoice
    sampling: Mapping[str, Any]
    draft: str
    """Fingerprint of the draft that served it."""


@dataclass(frozen=True)
class Contestant:
    """``report`` is the inspection's; a draft with errors takes no part."""

    label: str
    folder: Path
    fingerprint: str
    report: SpeculationReport


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 for a comparison, 1 where none can be made, 2 for wrong usage."""
    if not argv or argv[0] != "compare":
        wrong = bool(argv) and argv[0] not in ("-h", "--help")
        print("usage: eaglegate drafts compare CAPTURE --draft [LABEL=]FOLDER ... --out FOLDER")
        print("       eaglegate drafts log STATE [ID]")
        return 2 if wrong else 0
    options = make_parser().parse_args(argv[1:])
    try:
        report = compare(options)
    except (CompareError, CaptureError, OSError, ValueError) as error:
        print(f"eaglegate drafts: {error}", file=sys.stderr)
        return 1
    report["command"] = shlex.join(["eaglegate", "drafts", *argv])
    (options.out / "report.json").write_text(json.dumps(report, indent=1, default=_to_plain) + "\n")
    print(format_report(report))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "eaglegate drafts compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("capture", type=Path, metavar="CAPTURE", help="a capture file or folder")
    parser.add_argument("--draft", action="append", required=True, metavar="[LABEL=]FOLDER")
    parser.add_argument("--target", type=Path, default=DEMO / "target", help="default: the demo")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--depth", type=int, default=7, help="deepest K to unroll (default: 7)")
    parser.add_argument("--limit", type=int, help="answers to read, from the first on")
    parser.add_argument("--key-file", type=Path, help="Fernet keys of an encrypted capture")
    parser.add_argument(
        "--cost-table",
        type=Path,
        help='JSON: {"batches": [...], "depths": [...], "step_ms": [[...]]}',
    )
    parser.add_argument("--batch", type=float, default=1.0, help="sequences at a time (costs)")
    parser.add_argument("--threads", type=int, help="CPU threads; default: all cores")
    return parser


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Raises CompareError."""
    if options.depth < 1:
        raise CompareError(f"--depth must be at least 1; given {options.depth}")
    cost = None
    if options.cost_table is not None:
        row = json.loads(options.cost_table.read_text(encoding="utf-8"))
        cost = CostTable.parse(row, str(options.cost_table))
    contestants = [inspect(text, options.target, options.depth) for text in options.draft]
    if len({one.label for one in contestants}) < len(contestants):
        raise CompareError("two drafts have the same label: write LABEL=FOLDER")
    cipher = make_cipher(read_keys(options.key_file) if options.key_file else [])
    found, left_out = read_answers(read_records(options.capture, cipher), options.limit)
    if not found:
        raise CompareError(
            f"{options.capture}: no answer of two tokens or more has its token ids "
            f"({left_out} left out): capture with --capture-mode full"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    fit = [one for one in contestants if not one.report.errors]
    results = unroll_all(options, fit, found)
    depths = list(range(1, options.depth + 1))
    observed = {one.label: observe(found, results[one.label], depths) for one in fit}
    return {
        "capture": str(options.capture),
        "target": str(options.target),
        "answers": len(found),
        "left_out": left_out,
        "sessions": len({one.facts.session for one in found}),
        "depths": depths,
        "cost_table": cost.source if cost else None,
        "drafts": {
            one.label: describe(one)
            | (
                summarise_draft(observed[one.label], depths, cost, options.batch)
                | {"drift": results[one.label].drift(found)}
                if one in fit
                else {}
            )
            for one in contestants
        },
        "against": {
            "base": fit[0].label if fit else None,
            "depth": depths[-1],
            "drafts": {
                one.label: compare_pair(observed[fit[0].label], observed[one.label], depths[-1])
                for one in fit[1:]
            },
        },
        "live": list_live(found, fit, observed),
    }


def inspect(text: str, target: Path, depth: int) -> Contestant:
    label, named, folder = text.partition("=")
    path = Path(folder if named else label)
    config = {"method": "eagle3", "model": str(path), "num_speculative_tokens": depth}
    report = inspect_draft(target, config)
    fingerprint = "" if report.errors else fingerprint_draft(path)
    return Contestant(label if named else path.name, path, fingerprint, report)


def read_answers(records: Iterator[CaptureRecord], limit: int | None) -> tuple[list[Answer], int]:
    """What can be unrolled, and how many answers cannot."""
    found: list[Answer] = []
    left_out = 0
    for record in records:
        for number, choice in enumerate(record.choices):
            prompt = record.prompts[choice.prompt].token_ids
            held = bool(record.constraint)  # the grammar cuts drafts, which is not replayed
            if held or prompt is None or choice.token_ids is None or len(choice.token_ids) < 2:
                left_out += 1
                continue
            if limit is not None and len(found) >= limit:
                return found, left_out
            facts = AnswerFacts(
                f"{record.id}/{number}",
                record.cluster,
                record.workload,
                record.context,
                choice.phases,
                not record.greedy,
                len(choice.token_ids),
            )
            found.append(Answer(facts, prompt, choice, record.sampling, record.draft))
    return found, left_out


class Results:
    """What was unrolled of one draft, kept in a file from which a run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_id: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    row = json.loads(line)
                    self.by_id[row["id"]] = row
                except (ValueError, KeyError, TypeError):
                    continue

    def add(self, row: dict[str, Any]) -> None:
        self.by_id[row["id"]] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(row, separators=(",", ":")))

    def drift(self, found: Sequence[Answer]) -> dict[str, list[float]]:
        """Means over positions by measure and depth."""
        from training.drift import MEASURES

        rows = [self.by_id[one.facts.id] for one in found if one.facts.id in self.by_id]
        count = sum(len(row["matches"]) for row in rows) or 1
        return {
            name: [
                round(sum(row["drift"][at][depth] for row in rows) / count, 4)
                for depth in range(len(rows[0]["drift"][at]))
            ]
            for at, name in enumerate(MEASURES)
            if rows
        }


def unroll_all(
    options: argparse.Namespace, fit: Sequence[Contestant], found: Sequence[Answer]
) -> dict[str, Results]:
    """Raises CompareError."""
    target_print = fingerprint_draft(options.target)
    results = {
        one.label: Results(
            options.out / f"unrolled-{target_print}-{one.fingerprint}-{options.depth}.jsonl"
        )
        for one in fit
    }
    todo = [one for one in found if any(one.facts.id not in results[d.label].by_id for d in fit)]
    if not todo:
        return results
    try:
        import torch

        from training.progress import Clock
        from training.unrolling import DraftHead, TargetModel, Trajectory, unroll_answers
    except ImportError as error:
        raise CompareError(f"needs {error.name}: pip install 'eaglegate[train]'") from error
    if options.threads:
        torch.set_num_threads(options.threads)
    target = TargetModel.load(options.target)
    heads = [DraftHead.load(one.label, one.folder, target) for one in fit]
    clock = Clock(len(todo), 0)
    for number, one in enumerate(todo, 1):
        missing = [head for head in heads if one.facts.id not in results[head.name].by_id]
        trajectory = Trajectory(one.prompt, one.choice.token_ids or (), **_sampling(one))
        for label, unrolled in unroll_answers(target, missing, trajectory, options.depth):
            row = {"id": one.facts.id, "matches": unrolled.matches, "drift": unrolled.drift}
            if trajectory.temperature > 0:
                row["chances"] = [[round(p, 5) for p in line] for line in unrolled.chances]
            results[label].add(row)
        print(f"\r{clock.at(number)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def _sampling(answer: Answer) -> dict[str, Any]:
    """What the engine sampled from. With penalties or a bias, matches alone are counted."""
    given = answer.sampling
    if not answer.facts.sampled or any(name in given for name in PENALTIES):
        return {}
    sampling = {"temperature": float(given.get("temperature", 1.0))}
    return sampling | {name: given[name] for name in ("top_k", "top_p", "min_p") if name in given}


def observe(found: Sequence[Answer], results: Results, depths: Sequence[int]) -> list[DraftReplay]:
    observations = []
    for one in found:
        row = results.by_id[one.facts.id]
        matches = row["matches"]
        chances = row.get("chances") or [
            [float(at < right) for at in range(depths[-1])] for right in matches
        ]
        phases = one.facts.phase_at()
        walks = {depth: walk_answer(matches, chances, depth, phases) for depth in depths}
        observations.append(DraftReplay(one.facts, walks))
    return observations


def describe(one: Contestant) -> dict[str, Any]:
    return {
        "folder": str(one.folder),
        "fingerprint": one.fingerprint,
        "method": one.report.method,
        "findings": [f"{finding}" for finding in one.report.findings],
        "refused": bool(one.report.errors),
    }


def list_live(
    found: Sequence[Answer], fit: Sequence[Contestant], observed: Mapping[str, list[DraftReplay]]
) -> list[dict[str, Any]]:
    """What the capture recorded of drafts that take part, beside their prediction on the same
    answers at the same depth."""
    rows = []
    for one in fit:
        by_depth: dict[int, list[Answer]] = {}
        for answer in found:
            deepest = max((step.drafted for step in answer.choice.steps), default=0)
            if answer.draft == one.fingerprint and deepest:
                by_depth.setdefault(deepest, []).append(answer)
        for depth, answers in sorted(by_depth.items()):
            known = {answer.facts.id for answer in answers}
            walks = [o for o in observed[one.label] if o.facts.id in known and depth in o.walks]
            steps = [
                (
                    answer.facts.session,
                    sum(step.drafted > 0 for step in answer.choice.steps),
                    sum(step.accepted for step in answer.choice.steps),
                )
                for answer in answers
            ]
            predicted = estimate_live(
                (o.facts.session, o.walks[depth][ALL].steps, o.walks[depth][ALL].accepted)
                for o in walks
                if ALL in o.walks[depth]
            )
            live = estimate_live(steps)
            rows.append({"draft": one.label, "depth": depth, "live": live, "predicted": predicted})
    return rows


def _to_plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} is not JSON")
