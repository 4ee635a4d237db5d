"""``eaglegate explain``: show where the time of one request went, for pasting into an issue.

Without an id, it lists the requests that a running gateway can explain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from eaglegate.server.cli.client import CallFailed, add_gateway_options, send
from eaglegate.server.cli.harmless import make_harmless

Row = Mapping[str, Any]
BAR = 30
"""Length of the longest bar in characters."""
MOST_RUNS = 40


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if the gateway does not know the request or does not answer."""
    parser = argparse.ArgumentParser(
        prog="eaglegate explain", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "id", nargs="?", help="the answer's id (chatcmpl-...) or the x-request-id of its response"
    )
    add_gateway_options(parser)
    options = parser.parse_args(argv)
    path = "/debug/requests" + (f"/{quote(options.id, safe='')}" if options.id else "")
    try:
        answer = send(options.url.rstrip("/") + path, None, options.key)
    except CallFailed as error:
        print(f"eaglegate explain: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        lines = format_explanation(answer) if options.id else format_lists(answer)
        print(make_harmless("\n".join(lines)))
    return 0


def format_lists(lists: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Format the newest, slowest, worst accepted and failed requests."""
    for name, rows in lists.items():
        yield f"{name.replace('_', ' ')}: {len(rows) or 'none'}"
        for row in rows[:10]:
            yield "  " + _format_line(row)


def _format_line(row: Row) -> str:
    tokens = ""
    if row.get("completion_tokens") is not None:
        tokens = f"{row['prompt_tokens']} + {row['completion_tokens']} tokens"
    length = row.get("acceptance_length")
    words = [
        row["id"],
        f"{row['wall_ms']:.0f} ms",
        row.get("code") or row["outcome"],
        tokens,
        "" if length is None else f"acceptance {length:.2f}",
    ]
    return "  ".join(word for word in words if word)


def format_explanation(row: Row) -> Iterator[str]:
    """Format the explanation of one request."""
    yield f"{row['id']}  {row['path']} {row['status']}  {row['outcome']}  {row['at']}"
    if other_rows := row.get("same_request_id"):
        yield "other requests with this x-request-id, which clients choose (explain them by id):"
        yield from ("  " + _format_line(other_row) for other_row in other_rows)
    if "choices" not in row:
        yield f"refused with {row.get('code') or row['status']} after {row['wall_ms']:.1f} ms"
        return
    num_cached = row["cached_tokens"]
    yield (
        f"{row['prompt_tokens']} prompt tokens "
        f"({'?' if num_cached is None else num_cached} cached), "
        f"{row['completion_tokens']} completion tokens, {row['reasoning_tokens']} of them reasoning"
    )
    yield f"{row['workload']}, lane {row['lane']}, drafts {', '.join(row['drafts']) or 'none'}"
    yield ""
    yield f"wall time {row['wall_ms']:.1f} ms"
    yield from _format_parts(row["parts"])
    if row["decode"]:
        yield (
            f"  of decode: drafting {row['decode']['drafting_ms']:.1f} ms, verifying "
            f"{row['decode']['verifying_ms']:.1f} ms; for rejected drafts "
            f"{row['decode']['of_which_rejected_ms']:.1f} ms "
            f"(estimated by {row['decode']['estimated_by']})"
        )
    yield ""
    yield from _format_speculation(row["speculation"])
    for index, choice in enumerate(row["choices"]):
        yield from _format_choice(index, choice)
    for audit in row["audits"]:
        yield ""
        yield f"audit of choice {audit['choice']}: {audit['outcome']} ({audit['detail']})"


def _format_parts(parts: Sequence[Row]) -> Iterator[str]:
    longest_ms = max((part["ms"] for part in parts), default=0.0) or 1.0
    for part in filter(lambda part: part["ms"], parts):
        bar = "#" * round(BAR * part["ms"] / longest_ms)
        yield f"  {part['name']:13}{part['ms']:10.1f} ms {part['share']:6.1%}  {bar}".rstrip()


def _format_causes(run: Row) -> str:
    """Format the planner's reasons for the depth of a run, and its lookups."""
    counts: Mapping[str, int] = run["planned"]
    planned = ", ".join(
        f"{name} {count}" if len(counts) > 1 else name for name, count in counts.items()
    )
    lookups = _count(run["lookups"], "lookup") if run.get("lookups") else ""
    return (planned and f", planned: {planned}") + (lookups and f", {lookups}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _format_speculation(totals: Row) -> Iterator[str]:
    length = totals["acceptance_length"]
    if length is None:
        yield "no step verified a draft"
    else:
        yield (
            f"acceptance length {length:.2f}: {_count(totals['verify_steps'], 'verify step')}, "
            f"{_count(totals['drafted'], 'token')} drafted, {totals['accepted']} accepted"
        )
        if totals.get("lookup_steps"):
            yield (
                f"of these, {_count(totals['lookup_steps'], 'verify step')} of lookups, "
                f"{totals['lookup_accepted']} accepted"
            )


def _format_choice(index: int, choice: Row) -> Iterator[str]:
    yield ""
    extra = f", tool calls {', '.join(choice['tool_calls'])}" if choice["tool_calls"] else ""
    steps = _count(choice["steps"], "decode step")
    yield f"choice {index}: {steps}, finish {choice['finish']}{extra}"
    if choice["preemptions"]:
        yield f"  preempted {_count(choice['preemptions'], 'time')}"
    for loss in choice["interruptions"]:
        yield (
            f"  at {loss['at_ms']:.0f} ms its engine was lost: {loss['outcome']}, "
            f"{loss['recovery_ms']:.0f} ms until the next step"
        )
    runs = choice["runs"]
    for run in runs[:MOST_RUNS]:
        reason = f" ({run['reason']})" if run["reason"] else ""
        yield (
            f"  from token {run['from_token']:5}: depth {run['drafted']}{reason}, "
            f"{_count(run['steps'], 'step')}, {_count(run['tokens'], 'token')}, "
            f"{run['ms']:.1f} ms" + _format_causes(run)
        )
    if len(runs) > MOST_RUNS:
        yield f"  and {len(runs) - MOST_RUNS} more changes of depth (--json shows them)"
