"""``eaglegate draft`` and ``eaglegate canary``: swap a running gateway's draft, or try a change."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.features.canary.effects import describe_effect
from eaglegate.server.cli.client import CallFailed, add_gateway_options, send


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if the gateway refuses."""
    options = _make_argument_parser().parse_args(argv)
    try:
        answer = _call(options)
    except CallFailed as error:
        name = "canary" if options.command == "canary" else "draft"
        print(f"eaglegate {name}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=2) if options.json else _format(answer))
    return 0


def _make_argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eaglegate draft", description=__doc__)
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
    )
    swap = commands.add_parser(
        "swap", help="serve the draft in a folder from the next step on", allow_abbrev=False
    )
    swap.add_argument("path", help="folder of the draft, as the gateway sees it")
    swap.add_argument(
        "--trial", action="store_true", help="do not promote the draft: a restart ends the trial"
    )
    rollback = commands.add_parser(
        "rollback", help="end a trial, or go back to the previous draft", allow_abbrev=False
    )
    canary = commands.add_parser(
        "canary",
        prog="eaglegate canary",
        help="try a draft, rules or a worker on live traffic; show or stop the canary",
        allow_abbrev=False,
    )
    canary.add_argument(
        "path", nargs="?", help="folder of the draft (default: show the running canary)"
    )
    canary.add_argument(
        "--speculation",
        metavar="JSON",
        help="try these rules, as PUT /admin/speculation takes them",
    )
    canary.add_argument("--worker", metavar="URL", help="try this worker against the others")
    canary.add_argument("--release", metavar="URL", help="return a rolled-back worker to service")
    canary.add_argument(
        "--primary",
        choices=("acceptance", "tpot"),
        help="metric that must improve (default: acceptance, or tpot for rules)",
    )
    canary.add_argument(
        "--share", type=parse_number, help="try rules on this share of the sessions"
    )
    canary.add_argument(
        "--stop",
        action="store_true",
        help="stop the canary and go back to the previous draft or rules",
    )
    canary.add_argument(
        "--slot-s", type=parse_number, help="seconds that each arm serves at a time"
    )
    canary.add_argument(
        "--max-s", type=parse_number, help="seconds after which the canary ends undecided"
    )
    show = commands.add_parser(
        "show", help="show the serving draft and the last swaps", allow_abbrev=False
    )
    for command in (swap, rollback, canary, show):
        add_gateway_options(command)
    return parser


def _call(options: argparse.Namespace) -> dict[str, Any]:
    """Send the command to the gateway. Raises CallFailed."""
    if options.command == "canary":
        return _call_canary(options)
    body: dict[str, Any] | None = None
    path = "/admin/draft"
    if options.command == "rollback":
        path, body = "/admin/draft/rollback", {}
    elif options.command == "swap":
        body = {"path": _resolve(options.path), "trial": options.trial}
    return send(options.url.rstrip("/") + path, body, options.key)


def _call_canary(options: argparse.Namespace) -> dict[str, Any]:
    """Send a canary command to the gateway. Raises CallFailed."""
    url = options.url.rstrip("/") + "/admin/canary"
    if options.stop:
        return send(url, None, options.key, "DELETE")
    if options.release is not None:
        return send(f"{url}/release", {"worker": options.release}, options.key)
    times = {"slot_s": options.slot_s, "max_s": options.max_s}
    change = {
        "path": options.path and _resolve(options.path),
        "speculation": _read_rules(options.speculation),
        "share": options.share,
        "worker": options.worker,
        "primary": options.primary,
    }
    fields = {name: value for name, value in (change | times).items() if value is not None}
    return send(url, fields or None, options.key)


def _read_rules(text: str | None) -> Any:
    """Parse the rules given as JSON. Raises CallFailed."""
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise CallFailed(f"--speculation is not JSON: {error}") from None


def _resolve(path: str) -> str:
    """Return the absolute path of a local folder: the gateway may run in another directory."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path


def _format(answer: Mapping[str, Any]) -> str:
    if "canary" in answer:
        return _format_canary(answer["canary"])
    lines = []
    if swap := answer.get("swap"):
        pause_ms, took_ms = 1000 * swap["pause_s"], swap["took_s"]
        lines.append(
            f"{swap['kind']}: {swap['before']} -> {swap['after']}, "
            f"pause {pause_ms:.0f} ms, {took_ms:.1f} s in all"
        )
    for role in ("serving", "promoted", "previous", "configured"):
        version = answer[role]
        lines.append(f"{role:11}" + (_format_version(version) if version else "none"))
    return "\n".join(lines)


def _format_version(version: Mapping[str, Any]) -> str:
    return f"{version['fingerprint']}  {version['method']}  {version['source']}"


def _format_canary(canary: Mapping[str, Any] | None) -> str:
    if canary is None:
        return "no canary has run"
    verdict = "running" if canary["running"] else canary["verdict"] or "stopped"
    control = "the default rules" if canary["control"] == "{}" else canary["control"]
    lines = [
        f"{verdict}: {canary['candidate']} against {control}, {canary['blocks']} of "
        f"{canary['max_blocks']} blocks by {canary['by']}, {canary['sessions']} sessions",
        *([canary["reason"]] if canary["reason"] else []),
    ]
    return "\n".join([*lines, *(f"  {describe_effect(row)}" for row in canary["evidence"])])
