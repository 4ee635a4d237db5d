"""``eaglegate top``: live numbers of a running gateway, in a terminal."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.server.cli.client import CallFailed, add_gateway_options, complete_url
from eaglegate.server.cli.harmless import make_line_harmless
from eaglegate.server.cli.top.panels import format_plain
from eaglegate.server.cli.top.reading import GatewayReader, GatewayReading, explain_failure

CLEAR = "\x1b[H\x1b[2J"
"""Moves the cursor home and clears the terminal."""
SINCE = 5
"""Number of readings that are kept; the newest is compared with the oldest."""


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
        "--interval", type=parse_number, default=2.0, help="seconds between readings (default: 2)"
    )
    parser.add_argument(
        "--once", action="store_true", help="print one reading as text and end, as in a pipe"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if the gateway does not answer the first query."""
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
        with suppress(KeyboardInterrupt):
            _watch(reader, reading, options.interval)
    return 0


def format_json(reading: GatewayReading) -> str:
    report = {
        "speculation": reading.speculation,
        "requests": reading.requests,
        "metrics": [[*sample] for sample in reading.metrics.samples],
    }
    return json.dumps(report, indent=2)


def _watch(reader: GatewayReader, first_reading: GatewayReading, interval_s: float) -> None:
    """Show a reading after the other, and wait for a gateway that does not answer."""
    readings, failure = deque([first_reading], SINCE), ""
    while True:
        width, height = shutil.get_terminal_size()
        lines = format_plain(readings[-1], readings[0] if len(readings) > 1 else None)
        screen = [failure, *lines] if failure else [*lines]
        print(CLEAR + "\n".join(line[:width] for line in screen[: height - 1]), flush=True)
        time.sleep(interval_s)
        try:
            reading = reader.read()
        except CallFailed as error:
            failure = make_line_harmless(f"! no reading, trying again: {explain_failure(error)}")
        else:
            if failure:  # the gateway may have restarted, and its counters with it
                readings.clear()
            readings.append(reading)
            failure = ""
