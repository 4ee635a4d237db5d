"""``eaglegate top``: live numbers of a running gateway, in a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module

from eaglegate.server.cli.client import CallFailed, add_gateway_options, complete_url
from eaglegate.server.cli.top.panels import format_plain
from eaglegate.server.cli.top.reading import GatewayReader, GatewayReading, explain_failure

SCREEN = ("textual", "rich")
"""Packages of the extra ``top``."""
WITHOUT_SCREEN = (
    "eaglegate: the screen needs textual: pip install '.[top]' in eaglegate's checkout; "
    "`eaglegate top --once` prints the same numbers without it"
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eaglegate top",
        description="Show the live numbers of a running gateway: speed, acceptance by slice, the "
        "planner's choices, admission, engines, drafts, and the requests to look at.",
        allow_abbrev=False,
    )
    parser.add_argument("address", nargs="?", type=complete_url, help=argparse.SUPPRESS)
    add_gateway_options(parser)
    parser.add_argument(
        "--interval", type=float, default=2.0, help="seconds between readings (default: 2)"
    )
    parser.add_argument(
        "--once", action="store_true", help="print one reading as text and end, as in a pipe"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if the gateway does not answer the first query, 2 without
    textual.
    """
    parser = make_parser()
    options = parser.parse_args(argv)
    if not options.interval >= 0.1:
        parser.error(f"--interval is at least 0.1 seconds; given {options.interval}")
    reader = GatewayReader(options.address or options.url, options.key)
    try:
        reading = reader.read()
    except CallFailed as error:
        print(f"eaglegate top: {explain_failure(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(format_json(reading))
    elif options.once or not sys.stdout.isatty():
        print("\n".join(format_plain(reading)))
    else:
        return _show(reader, reading, options.interval)
    return 0


def format_json(reading: GatewayReading) -> str:
    report = {
        "speculation": reading.speculation,
        "requests": reading.requests,
        "metrics": [[*sample] for sample in reading.metrics.samples],
    }
    return json.dumps(report, indent=2)


def _show(reader: GatewayReader, reading: GatewayReading, interval_s: float) -> int:
    try:
        screen = import_module("eaglegate.server.cli.top.screen")
    except ModuleNotFoundError as error:
        if error.name not in SCREEN:
            raise
        print(WITHOUT_SCREEN, file=sys.stderr)
        return 2
    screen.TopApp(reader, reading, interval_s).run()
    return 0
