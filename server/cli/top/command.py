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
from dataclasses import asdict

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.server.cli.client import CallFailed, add_gateway_options, complete_url, send
from eaglegate.server.cli.harmless import make_line_harmless
from eaglegate.server.cli.top.panels import GatewayReading, format_plain

CLEAR = "\x1b[H\x1b[2J"
"""Moves the cursor home and clears the terminal."""
SINCE = 5
"""Number of readings that are kept; the newest is compared with the oldest."""
TIMEOUT_S = 5.0
DENIED = (401, 403)
KEYS = "The gateway has keys: give an admin's with --key or EAGLEGATE_ADMIN_API_KEY."
ELSEWHERE = (
    "There are no operator pages here. With an admin port, give its address; the gateway prints "
    "it when it starts."
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
    url, key = options.address or options.url, options.key
    try:
        reading = read_gateway(url, key)
    except CallFailed as error:
        print(f"eaglegate top: {explain_failure(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps(asdict(reading), indent=2))
    elif options.once or not sys.stdout.isatty():
        print("\n".join(format_plain(reading)))
    else:
        with suppress(KeyboardInterrupt):
            _watch(url, key, reading, options.interval)
    return 0


def read_gateway(url: str, key: str | None) -> GatewayReading:
    """Read everything that the command shows. Blocks for up to a few seconds. Raises CallFailed."""
    speculation = send(f"{url}/debug/speculation", None, key, timeout_s=TIMEOUT_S)
    try:
        requests = send(f"{url}/debug/requests", None, key, timeout_s=TIMEOUT_S)
    except CallFailed as error:
        if error.status != 404:
            raise
        requests = {}
    return GatewayReading(speculation, requests)


def explain_failure(error: CallFailed) -> str:
    """Explain why there is no reading, and what to do."""
    if error.status in DENIED:
        return f"{error} {KEYS}"
    return f"{error} {ELSEWHERE}" if error.status == 404 else str(error)


def _watch(url: str, key: str | None, first_reading: GatewayReading, interval_s: float) -> None:
    """Show a reading after the other, and wait for a gateway that does not answer."""
    readings, failure = deque([first_reading], SINCE), ""
    while True:
        width, height = shutil.get_terminal_size()
        lines = format_plain(readings[-1], readings[0] if len(readings) > 1 else None)
        screen = [failure, *lines] if failure else [*lines]
        print(CLEAR + "\n".join(line[:width] for line in screen[: height - 1]), flush=True)
        time.sleep(interval_s)
        try:
            reading = read_gateway(url, key)
        except CallFailed as error:
            failure = make_line_harmless(f"! no reading, trying again: {explain_failure(error)}")
        else:
            if failure:  # the gateway may have restarted, and its counters with it
                readings.clear()
            readings.append(reading)
            failure = ""
