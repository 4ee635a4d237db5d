"""``eaglegate audit``: show what audits found on a running gateway, and replay violations."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglegate.server.cli.client import CallFailed, add_gateway_options, send

Row = Mapping[str, Any]
MOST = 20
"""Maximum number of differing tokens that are listed."""


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if the gateway does not answer or a file cannot be read."""
    options = _make_parser().parse_args(argv)
    url = options.url.rstrip("/") + "/admin/audit"
    try:
        if options.action == "replay":
            content = json.loads(Path(options.file).read_text(encoding="utf-8"))
            answer = send(f"{url}/replay", content, options.key)
            lines = format_replay(content, answer)
        elif options.action == "release":
            answer, lines = _release(options, url)
        else:
            answer = send(url, None, options.key)
            lines = format_audits(answer)
    except (CallFailed, OSError, ValueError) as error:
        print(f"eaglegate audit: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2) if options.json else "\n".join(lines))
    return 0


def _release(options: argparse.Namespace, url: str) -> tuple[dict[str, Any], Iterator[str]]:
    """Release a workload or a worker, or the depths that crashed engines."""
    if options.drafts:
        url = url.removesuffix("audit") + "speculation/release"
        answer = send(url, {}, options.key)
        names = (f"{hold['method']}, depth {hold['depth']}" for hold in answer["released"])
        return answer, (f"{name}: in use again" for name in names)
    answer = send(f"{url}/release", {"workload": options.workload}, options.key)
    return answer, iter([f"{options.workload} is released"])


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eaglegate audit", description=__doc__)
    actions = parser.add_subparsers(
        dest="action",
        required=True,
        metavar="ACTION",
    )
    show = actions.add_parser(
        "show", help="show the held workloads and the last audits", allow_abbrev=False
    )
    replay = actions.add_parser(
        "replay", help="score the answer in a violation's file again", allow_abbrev=False
    )
    replay.add_argument("file", metavar="FILE", help="a file from the folder --audit-evidence")
    release = actions.add_parser(
        "release", help="release a workload or a worker", allow_abbrev=False
    )
    target = release.add_mutually_exclusive_group(required=True)
    target.add_argument("workload", metavar="WORKLOAD", nargs="?", help="a held workload or worker")
    target.add_argument(
        "--drafts", action="store_true", help="release the depths whose drafts crashed the engine"
    )
    for action in (show, replay, release):
        add_gateway_options(action)
    return parser


def format_audits(report: Row) -> Iterator[str]:
    """Format the holds, the evidence and the last audits."""
    yield (
        f"{report['share']:.2%} of answers are audited, in {report['engine_share']:.3%} of the "
        f"engine's time; {report['waiting']} wait"
    )
    for worker in report["workers"]:
        tie = worker["near_tie_nats"]
        state = f"scores, near ties to {tie} nats" if worker["scores"] else "is not audited"
        yield f"{worker['name']} ({worker['version'] or 'version unknown'}): {state}"
        yield from (f"  {alarm}" for alarm in worker["alarms"])
    for name, hold in report["holds"].items():
        yield f"{name}: no speculation: {hold['reason']} (draft {hold['draft'] or '-'})"
    for name, evidence in report["evidence"].items():
        yield (
            f"{name}: {evidence['answers']} sampled answers, {evidence['tokens']} tokens, "
            f"{evidence['nats']:.1f} nats of evidence; an alarm needs {evidence['alarm_at_nats']}"
        )
    for record in report["recent"][:MOST]:
        yield (
            f"  {record['request']}  {record['workload']}  {record['choosing']}  "
            f"depth {record['depth']}  drafter {record['drafter']}  "
            f"{record['worker'] and record['worker'] + '  '}{record['outcome']}  "
            f"{record['detail']}"
        )


def format_replay(content: Row, answer: Row) -> Iterator[str]:
    """Format the recorded verdict and the new verdicts, of the stored answer and of new answers."""
    yield f"found: {content['found']['detail']}"
    for name, scores in answer.items():
        if scores["choosing"] == "grammar":
            yield f"{name}: {scores['breach'] or 'keeps its grammar'}"
            continue
        yield f"{name}: {scores['outcome']}, {scores['tokens']} tokens ({scores['choosing']})"
        for token in scores["differing"][:MOST]:
            margin = token["margin_nats"]
            verdict = "excluded by the rules" if margin is None else f"{margin} nats worse"
            yield (
                f"  token {token['place']}: {token['token']} instead of {token['target']}, "
                f"{verdict}"
            )
    if answer["stored"]["choosing"] == "sampled":
        yield "A sampled answer proves little alone: the evidence came from many answers."
