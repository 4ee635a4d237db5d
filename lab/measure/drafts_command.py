"""``eaglegate drafts compare``: find the best draft for captured traffic, without serving any.

eaglegate drafts compare CAPTURE --draft old=DIR --draft new=DIR [--target MODEL] --out FOLDER

The target reads every captured answer once, and every draft is unrolled at every position of it.
After an interruption, the same command continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.engine.speculation.drafts.files import fingerprint_draft
from eaglegate.engine.speculation.drafts.inspection import inspect_draft
from eaglegate.lab.measure.drafts import (
    CostTable,
    DraftReplay,
    compare_pair,
    compare_served,
    summarise_draft,
)
from eaglegate.lab.measure.drafts_answers import (
    PROBABILISTIC,
    Answer,
    CompareError,
    Contestant,
    observe,
    observe_served,
    read_answers,
    unroll_all,
)
from eaglegate.lab.measure.drafts_report import DraftsReport
from eaglegate.lab.measure.report import describe_run
from eaglegate.observability.captures.files import add_key_file_argument, load_cipher, read_records
from eaglegate.observability.captures.record import CaptureError

DEPTH = 7
DEMO = Path(__file__).parents[2] / "engine" / "demo"


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0 for a comparison, 1 if none can be made, 2 for wrong usage."""
    if not argv or argv[0] != "compare":
        is_wrong = bool(argv) and argv[0] not in ("-h", "--help")
        print("usage: eaglegate drafts compare CAPTURE --draft [LABEL=]FOLDER ... --out FOLDER")
        print("       eaglegate drafts log STATE [ID]")
        return 2 if is_wrong else 0
    options = make_parser().parse_args(argv[1:])
    try:
        run = describe_run("drafts", argv)
        DraftsReport(run, compare(options)).print(options.out)
    except (CompareError, CaptureError, OSError, ValueError) as error:
        print(f"eaglegate drafts: {error}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "eaglegate drafts compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("capture", type=Path, metavar="CAPTURE", help="a capture file or folder")
    parser.add_argument("--draft", action="append", required=True, metavar="[LABEL=]FOLDER")
    parser.add_argument(
        "--target",
        type=Path,
        default=DEMO / "target",
        help="folder of the target model (default: the demo)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--depth", type=int, help="deepest K to unroll (default: from the step costs, or 7)"
    )
    parser.add_argument("--limit", type=int, help="read only the first LIMIT answers")
    add_key_file_argument(parser)
    parser.add_argument(
        "--cost-table",
        type=Path,
        metavar="FILE",
        help="step costs: step-costs.json of `eaglegate bench --depths`, an answer of GET "
        '/admin/speculation, or {"batches": [...], "depths": [...], "step_ms": [[...]]}',
    )
    parser.add_argument(
        "--batch",
        type=parse_number,
        default=1.0,
        help="sequences in a step, for the step costs (default: %(default)g)",
    )
    parser.add_argument(
        "--draft-sample-method",
        choices=("greedy", PROBABILISTIC),
        default="greedy",
        help="draft_sample_method of the engine's --speculative-config (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, help="number of CPU threads (default: all cores)")
    return parser


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Unroll the drafts over the captured answers, and return the results. Raises CompareError."""
    cost = read_costs(options)
    if options.depth is None:
        options.depth = int(cost.depths[-1]) if cost else DEPTH
    if options.depth < 1:
        raise CompareError(f"--depth must be at least 1; given {options.depth}")
    if cost is not None:
        cost.step_time(options.batch, options.depth)  # refused now, not after an hour
    contestants = [inspect(text, options.target, options.depth) for text in options.draft]
    if len({contestant.label for contestant in contestants}) < len(contestants):
        raise CompareError("two drafts have the same label: write LABEL=FOLDER")
    records = read_records(options.capture, load_cipher(options.key_file))
    drafts_sampled = options.draft_sample_method == PROBABILISTIC
    answers, num_excluded = read_answers(records, options.limit, drafts_sampled=drafts_sampled)
    if not answers:
        raise CompareError(
            f"{options.capture}: no answer of two tokens or more has its token ids "
            f"({num_excluded} left out): capture with --capture-mode full"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    fit = [contestant for contestant in contestants if not contestant.report.errors]
    results = unroll_all(options, fit, answers)
    depths = list(range(1, options.depth + 1))
    replays = {
        contestant.label: observe(answers, results[contestant.label], depths) for contestant in fit
    }
    return summarise(options, contestants, answers, cost, replays) | {"left_out": num_excluded}


def read_costs(options: argparse.Namespace) -> CostTable | None:
    """Read the step costs; None without any. Raises OSError, ValueError."""
    if options.cost_table is None:
        return None
    row = json.loads(options.cost_table.read_text(encoding="utf-8"))
    return CostTable.parse(row, str(options.cost_table))


def summarise(
    options: argparse.Namespace,
    contestants: Sequence[Contestant],
    answers: Sequence[Answer],
    cost: CostTable | None,
    replays: Mapping[str, list[DraftReplay]],
) -> dict[str, Any]:
    """Return the content of ``report.json`` except the run. ``replays`` are by label."""
    depths = list(range(1, options.depth + 1))
    fit = [contestant for contestant in contestants if contestant.label in replays]
    plain_ms = cost.step_time(options.batch, 0) if cost and cost.depths[0] == 0 else None
    drafts = {contestant.label: describe(contestant) for contestant in contestants}
    for label, observations in replays.items():
        drafts[label] |= summarise_draft(observations, depths, cost, options.batch)
    base = fit[0].label if fit else ""
    return {
        "capture": str(options.capture),
        "target": str(options.target),
        "answers": len(answers),
        "sampled": sum(answer.facts.sampled for answer in answers),
        "sessions": len({answer.facts.session for answer in answers}),
        "draft_sample_method": options.draft_sample_method,
        "depths": depths,
        "cost_table": cost.source if cost else None,
        "batch": options.batch,
        "plain_ms": plain_ms,
        "drafts": drafts,
        "against": {
            "base": base or None,
            "depth": depths[-1],
            "drafts": {
                rival.label: compare_pair(replays[base], replays[rival.label], depths[-1])
                for rival in fit[1:]
            },
        },
        "live": list_live(answers, fit, replays),
    }


def inspect(text: str, target: Path, depth: int) -> Contestant:
    """Inspect a draft. Raises CompareError."""
    label, separator, folder = text.partition("=")
    path = Path(folder if separator else label)
    if not path.exists():
        raise CompareError(f"--draft {text}: there is no folder {path}")
    config = {"method": "eagle3", "model": str(path), "num_speculative_tokens": depth}
    report = inspect_draft(target, config)
    fingerprint = "" if report.errors else fingerprint_draft(path)
    return Contestant(label if separator else path.name, path, fingerprint, report)


def describe(contestant: Contestant) -> dict[str, Any]:
    return {
        "folder": str(contestant.folder),
        "fingerprint": contestant.fingerprint,
        "method": contestant.report.method,
        "findings": [f"{finding}" for finding in contestant.report.findings],
        "refused": bool(contestant.report.errors),
    }


def list_live(
    captured_answers: Sequence[Answer],
    fit: Sequence[Contestant],
    replays: Mapping[str, list[DraftReplay]],
) -> list[dict[str, Any]]:
    """Return the captured acceptance of the drafts that take part, with the prediction on the same
    answers at the same depth.
    """
    rows = []
    for contestant in fit:
        by_depth: dict[int, list[Answer]] = {}
        for answer in captured_answers:
            steps = answer.choice.steps
            max_depth = max((step.drafted for step in steps), default=0)
            has_lookups = any(step.lookup for step in steps)  # not the draft's work
            if answer.draft == contestant.fingerprint and max_depth and not has_lookups:
                by_depth.setdefault(max_depth, []).append(answer)
        for depth, answers in sorted(by_depth.items()):
            predictions = [walk for walk in replays[contestant.label] if depth in walk.walks]
            slices = compare_served(observe_served(answers, depth), predictions, depth)
            if slices:
                rows.append({"draft": contestant.label, "depth": depth, "slices": slices})
    return rows
