"""The command line of ``eaglegate replay``."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.lab.measure.bench import name_settings
from eaglegate.lab.measure.bench_command import (
    add_request_arguments,
    add_result_arguments,
    make_headers,
    say,
    stop_on_sigterm,
)
from eaglegate.lab.measure.load import Target
from eaglegate.lab.measure.near_ties import TIE, explain_texts
from eaglegate.lab.measure.pairs import MARGIN, match_pairs
from eaglegate.lab.measure.replay import (
    RECORDED,
    ReplayJournal,
    ReplayPlan,
    ReplayRequest,
    ReplayRun,
    read_requests,
)
from eaglegate.lab.measure.replay_report import ReplayReport, make_report
from eaglegate.lab.measure.report import describe_run
from eaglegate.lab.measure.runs import BenchError, open_clients
from eaglegate.lab.measure.servers import DEMO, ServerError, Setting, demo_flags, read_setting
from eaglegate.lab.measure.statistics import Verdict
from eaglegate.observability.captures.files import add_key_file_argument, load_cipher, read_records
from eaglegate.observability.captures.record import CaptureError

EPILOG = """\
--against is a URL; a JSON object of fields for the first URL, such as
'{"num_speculative_tokens": 1}'; or `serve FLAGS`, a server that this command starts (`serve` alone:
the demo). Two settings are compared with each other, one with the recorded run.
Definitions: docs/measure.md."""


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0 for better or no difference, 3 for worse, 4 for not enough data, 1
    if the run cannot be made, 2 for wrong usage.
    """
    stop_on_sigterm()
    options = make_parser().parse_args(argv)
    try:
        plan = make_plan(options)
        folder = Path(options.out or time.strftime("eaglegate-replay-%Y%m%d-%H%M%S"))
        folder.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(run_replay(plan, folder, options, argv))
    except (BenchError, CaptureError, ServerError, ValueError, OSError) as error:
        print(f"eaglegate replay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; --resume with the same --out continues", file=sys.stderr)
        return 130
    report.print(folder)
    return {Verdict.WORSE: 3, Verdict.UNKNOWN: 4}.get(report.verdict.verdict, 0)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "eaglegate replay",
        description="Send a capture again and compare settings, request by request.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a capture, or a folder of them")
    parser.add_argument("--against", action="append", required=True, metavar="URL|FIELDS|serve ...")
    parser.add_argument(
        "--model", default="", help="name of the model (default: the server's first)"
    )
    timing = parser.add_argument_group("when")
    timing.add_argument(
        "--speed",
        type=parse_number,
        default=1.0,
        help="factor by which to speed the recorded times up",
    )
    timing.add_argument(
        "--closed-loop",
        action="store_true",
        help="ignore the recorded times: run --concurrency sessions at a time",
    )
    timing.add_argument("--concurrency", type=int, default=4)
    timing.add_argument(
        "--windows",
        type=int,
        default=16,
        help="number of parts of the capture, in which the settings take turns",
    )
    subject = parser.add_argument_group("what")
    subject.add_argument("--requests", type=int, help="replay only the first REQUESTS requests")
    subject.add_argument("--warmup", type=int, default=4, help="warm-up requests to each setting")
    add_key_file_argument(subject)
    judge = parser.add_argument_group("verdict")
    judge.add_argument(
        "--margin",
        type=parse_number,
        default=MARGIN,
        help="smallest relative difference that matters",
    )
    judge.add_argument(
        "--tie",
        type=parse_number,
        default=TIE,
        help="a text may differ where two tokens are at most this close, in nats",
    )
    add_request_arguments(parser)
    add_result_arguments(parser.add_argument_group("results"))
    return parser  # fmt: skip


def make_plan(options: argparse.Namespace) -> ReplayPlan:
    """Make the plan of the replay. Raises BenchError, CaptureError, ValueError."""
    if len(options.against) > 2:
        raise BenchError("--against: one (against the recorded run) or two (against each other)")
    cipher = load_cipher(options.key_file)
    records = list(read_records(options.file, cipher, say))[: options.requests]
    requests: list[ReplayRequest] = list(read_requests(records))
    if not requests:
        raise BenchError(f"{options.file} holds no request")
    if len(options.against) == 1 and not any(request.capture_result for request in requests):
        raise BenchError(
            f"{options.file} records no answers to compare with: give a second --against"
        )
    return ReplayPlan(
        requests=tuple(requests),
        settings=name_settings(read_settings(options)),
        speed=0.0 if options.closed_loop else options.speed,
        concurrency=options.concurrency,
        windows=options.windows,
        headers=make_headers(options),
        model=options.model,
        timeout_s=options.timeout,
        warmup=options.warmup,
    )


def read_settings(options: argparse.Namespace) -> list[Setting]:
    """Read the settings to compare. Raises BenchError, ValueError."""
    settings: list[Setting] = []
    for text in options.against:
        base = next(iter(settings), None)
        setting = read_setting(text, options.fields, base)
        if setting is None and text.split()[:1] == ["serve"]:
            arguments = tuple(shlex.split(text)[1:])
            flags = arguments or demo_flags(DEMO / "target", DEMO / "eagle3_1")
            setting = Setting(text, flags=flags, fields=options.fields)
        if setting is None:
            raise BenchError(
                f"--against '{text}': give a URL, serve FLAGS, or a JSON object of fields, which "
                "need an earlier --against with a server"
            )
        settings.append(setting)
    return settings


async def run_replay(
    plan: ReplayPlan, folder: Path, options: argparse.Namespace, argv: Sequence[str]
) -> ReplayReport:
    """Run the replay and return its report. Raises BenchError, ServerError."""
    journal = ReplayJournal(folder / "outcomes.jsonl", plan.digest(), resume=options.resume)
    base_is_capture = len(plan.settings) == 1
    names = (RECORDED if base_is_capture else plan.settings[0].name, plan.settings[-1].name)
    target = Target("", plan.model, headers=plan.headers, timeout_s=plan.timeout_s)
    own_fields = {"return_token_ids": True}
    async with open_clients(plan.settings, target, folder, say, own_fields) as clients:
        await ReplayRun(plan, clients, say).run(journal, bar=not options.quiet)
        base = None if base_is_capture else journal.outcomes[names[0]]
        windows = {} if base_is_capture else plan.number_windows()
        pairs = match_pairs(plan.requests, base, journal.outcomes[names[1]], windows)
        base_client = None if base_is_capture else clients[names[0]]
        text = await explain_texts(pairs, base_client, clients[names[1]], options.tie)
    return make_report(
        describe_run("replay", argv),
        names,
        len(plan.requests),
        pairs,
        text,
        base_is_capture=base_is_capture,
        margin=options.margin,
    )
