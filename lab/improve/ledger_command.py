"""``eaglegate drafts log``: every candidate of the improvement loop, and how it ended."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eaglegate.features.canary.effects import describe_effect
from eaglegate.lab.improve.ledger import Candidate, Ledger
from eaglegate.lab.measure.report import format_table

NONE = "no candidate yet"
HEAD = ("id", "created", "draft", "parent", "answers", "offline", "live", "verdict")


def main(argv: Sequence[str]) -> int:
    """Return the exit status, which is 1 without a ledger or without that candidate."""
    options = _make_argument_parser().parse_args(argv)
    path = options.state / "ledger.sqlite3" if options.state.is_dir() else options.state
    if not path.is_file():
        return _refuse(f"there is no ledger at {path}")
    ledger = Ledger(path)
    candidates = [c for c in ledger.list_candidates() if options.id in (None, c.id)]
    if options.id is not None and not candidates:
        return _refuse(f"no candidate {options.id}")
    if options.json:
        rows = [asdict(c) | {"events": ledger.list_events(c.id)} for c in candidates]
        print(json.dumps(rows, indent=1))
    elif options.id is not None:
        print(format_candidate(candidates[0], ledger.list_events(options.id)))
    else:
        print(format_candidates(candidates))
    return 0


def _refuse(reason: str) -> int:
    print(f"eaglegate drafts log: {reason}", file=sys.stderr)
    return 1


def _make_argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "eaglegate drafts log", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("state", type=Path, help="state folder of the loop")
    parser.add_argument(
        "id", type=int, nargs="?", help="number of a candidate: print all its details"
    )
    parser.add_argument("--json", action="store_true")
    return parser


def format_candidates(candidates: Sequence[Candidate]) -> str:
    return format_table(HEAD, [_format_row(c) for c in candidates]) if candidates else NONE


def _format_row(candidate: Candidate) -> tuple[str, ...]:
    verdict = f"in progress: {candidate.stage}"
    if candidate.verdict:
        verdict = f"{candidate.verdict}: {candidate.reason}"
    return (
        str(candidate.id),
        _format_time(candidate.created_at),
        (candidate.fingerprint or "-")[-8:],
        candidate.parent.get("fingerprint", "-")[-8:],
        str(candidate.data.get("answers", "-")),
        _format_offline(candidate.offline),
        _format_live(candidate.live),
        ("forced, " if candidate.forced else "") + verdict,
    )


def _format_time(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")


def _format_offline(comparison: Mapping[str, Any]) -> str:
    """Format the change of tokens per step over the parent, in the first target slice."""
    ratios = [
        item["ratio"] for item in comparison.get("slices", ()) if item["target"] and item["ratio"]
    ]
    return f"{ratios[0] - 1:+.1%}" if ratios else "-"


def _format_live(trial: Mapping[str, Any]) -> str:
    """Format the change of acceptance in the canary, whose evidence is logarithmic."""
    rows = [row for row in trial.get("evidence", ()) if row["metric"] == "acceptance"]
    return f"{math.expm1(rows[0]['mean']):+.1%}" if rows else "-"


def format_candidate(candidate: Candidate, events: Sequence[Mapping[str, Any]]) -> str:
    lines = [format_candidates([candidate]), ""]
    lines += [
        f"{_format_time(event['at'])}  {event['stage']:8} {event['text']}" for event in events
    ]
    for row in candidate.offline.get("slices", ()):
        mark = "ok  " if row["passed"] else "FAIL"
        lines.append(f"offline {mark} {row['slice']:24} {row['why']}")
    lines += [f"live         {describe_effect(row)}" for row in candidate.live.get("evidence", ())]
    return "\n".join(lines)
