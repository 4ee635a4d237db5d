"""``eaglegate improve``: tune the served draft on captured traffic and promote better drafts.

eaglegate improve --config FILE [--url URL]          run the loop
eaglegate improve --config FILE --candidate FOLDER   queue a draft of your own for it
eaglegate improve --config FILE --stop [REASON]      stop it; --start resumes it
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from eaglegate.engine.errors import DraftRefused
from eaglegate.engine.speculation.drafts.files import find_folder
from eaglegate.lab.improve.config import ConfigInvalid, ImproveConfig, read_config
from eaglegate.lab.improve.ledger import Ledger
from eaglegate.lab.improve.loop import LoopRunning, Switch, lock_state, make_loop
from eaglegate.server.cli.client import complete_url

WRONG_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0; 1 for another loop or a refused draft; 2 for wrong usage."""
    options = _make_argument_parser().parse_args(argv)
    try:
        config = read_config(options.config)
        _run(options, config)
        return 0
    except ConfigInvalid as error:
        print(f"eaglegate improve: {error}", file=sys.stderr)
        return WRONG_USAGE
    except (LoopRunning, DraftRefused, OSError) as error:
        print(f"eaglegate improve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _make_argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "eaglegate improve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--url",
        "--serve",
        type=complete_url,
        metavar="URL",
        help="operator address of the gateway (default: `serve` in the configuration)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="exit after one candidate, or if there is none",
    )
    parser.add_argument(
        "--candidate", type=Path, metavar="FOLDER", help="queue this draft as a candidate"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="with --candidate: start a canary even if the comparison fails",
    )
    parser.add_argument("--stop", nargs="?", const="stopped by an operator", metavar="REASON")
    parser.add_argument("--start", action="store_true", help="resume a stopped loop")
    parser.add_argument(
        "--key",
        default=os.environ.get("EAGLEGATE_ADMIN_API_KEY"),
        help="an admin's API key [EAGLEGATE_ADMIN_API_KEY]",
    )
    return parser


def _run(options: argparse.Namespace, config: ImproveConfig) -> None:
    """Do what the options ask for. Raises ConfigInvalid, DraftRefused and LoopRunning."""
    switch = Switch(config.state)
    if options.stop is not None:
        switch.turn_off(options.stop)
        print(f"stopped: {switch.path}")
    elif options.start:
        switch.turn_on()
        print("the loop may run")
    elif options.candidate is not None:
        folder = find_folder(str(options.candidate))
        candidate = Ledger(config.state / "ledger.sqlite3").add(str(folder), options.force)
        print(f"candidate {candidate.id} is queued: {folder}")
    else:
        _run_loop(options, config)


def _run_loop(options: argparse.Namespace, config: ImproveConfig) -> None:
    """Run the loop. Raises ConfigInvalid and LoopRunning."""
    url = options.url or config.serve
    if not url:
        raise ConfigInvalid("name the gateway: --url URL, or serve in the configuration")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s improve: %(message)s")
    signal.signal(signal.SIGTERM, _interrupt)
    with lock_state(config.state) as lock:
        candidate = make_loop(config, url, options.key, lock).run(options.once)
    if candidate is not None:
        print(f"candidate {candidate.id} {candidate.verdict}: {candidate.reason}")


def _interrupt(_: int, __: FrameType | None) -> None:
    """Raise KeyboardInterrupt, so that ``Stages.run_command`` also ends its command."""
    raise KeyboardInterrupt
