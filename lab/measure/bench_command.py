"""The command line of ``eaglegate bench``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from eaglegate.engine.flag_numbers import parse_number
from eaglegate.lab.measure.bench import BenchPlan, LoadPoint, name_settings, run_bench
from eaglegate.lab.measure.bench_compare import make_depth_settings, parse_depths
from eaglegate.lab.measure.bench_report import make_report
from eaglegate.lab.measure.datasets import DataError, list_own_sets, load_sessions
from eaglegate.lab.measure.figures import Goal
from eaglegate.lab.measure.replay import is_trace, read_trace
from eaglegate.lab.measure.report import describe_run
from eaglegate.lab.measure.runs import BenchError
from eaglegate.lab.measure.servers import (
    DEMO,
    DEMO_DEPTH,
    ServerError,
    Setting,
    demo_flags,
    drop_speculation,
    make_cost_scaled_demo,
    read_setting,
)
from eaglegate.observability.captures.record import CaptureError

EPILOG = """\
The measured server is --url, or one that this command starts with the flags after `--` (flags of
`eaglegate serve`; the demo without any). --baseline is the comparison: `none` is the same server
without a draft, a URL another server, a JSON object the same server with these fields in every
body, such as '{"num_speculative_tokens": 0}', and --baseline='--flag ...' the same server with more
flags. --depths compares the depths of one server, with depth 0 as the baseline; without --url and
flags this is the demo. Definitions of every figure: docs/measure.md."""


def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0 for a complete run, 1 if it cannot be made, 2 for wrong usage."""
    stop_on_sigterm()
    arguments, flags = _split_flags(argv)
    options = make_parser().parse_args(arguments)
    try:
        plan = make_plan(options, flags)
        folder = Path(options.out or time.strftime("eaglegate-bench-%Y%m%d-%H%M%S"))
        folder.mkdir(parents=True, exist_ok=True)
        running = run_bench(plan, folder, say, resume=options.resume, bar=not options.quiet)
        blocks = asyncio.run(running)
    except (BenchError, CaptureError, DataError, ServerError, ValueError) as error:
        print(f"eaglegate bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; --resume with the same --out continues", file=sys.stderr)
        return 130
    make_report(plan, blocks, describe_run("bench", argv)).print(folder)
    return 0


def stop_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C, so that the servers of a run stop with it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Call SIGINT's handler: asyncio's cancels the run. Raising here would throw the exception into
    an arbitrary task, whose group would wrap it in another.
    """
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    arguments = list(argv)
    if "--" not in arguments:
        return arguments, []
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "eaglegate bench",
        usage="eaglegate bench [options] [-- MODEL --serve-flags ...]",
        description="Compare settings under load: speed, latency, acceptance.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    subject = parser.add_argument_group("what")
    subject.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        help="an OpenAI-compatible server, without /v1; a second one is its baseline",
    )
    subject.add_argument(
        "--baseline",
        metavar="none|URL|FIELDS|FLAGS",
        help="setting to compare with (default: none, unless there is a --url)",
    )
    subject.add_argument(
        "--depths",
        metavar="0,1,3",
        help="compare these depths in one eaglegate",
    )
    subject.add_argument(
        "--cost-scaled",
        action="store_true",
        help="use the demo with 40 layers, whose target step has a realistic cost",
    )
    subject.add_argument(
        "--model", default="", help="name of the model (default: the server's first)"
    )
    add_request_arguments(parser)
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency", default="1,4,16", help="numbers of sessions at a time: 1,4,16"
    )
    load.add_argument(
        "--rate", help="start sessions at these rates per second instead: 0.5,2; or trace"
    )
    load.add_argument(
        "--burstiness",
        type=parse_number,
        default=1.0,
        help="with --rate: below 1 for bursts, above 1 for even arrivals (gamma)",
    )
    load.add_argument(
        "--burst", type=int, default=0, help="with --rate: sessions that arrive at once"
    )
    load.add_argument(
        "--requests",
        type=int,
        default=0,
        help="requests in a block (default: 4 x concurrency, at least 8)",
    )
    load.add_argument(
        "--repeats", type=int, default=5, help="blocks of each setting; intervals need 5"
    )
    load.add_argument("--warmup", type=int, default=8, help="warm-up requests to each setting")
    add_data_arguments(parser)
    results = parser.add_argument_group("results")
    results.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="limits a request must meet: ttft:500 tpot:50 e2el:10000",
    )
    add_result_arguments(results)
    return parser  # fmt: skip


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument(
        "--fields",
        type=json.loads,
        default={},
        metavar="JSON",
        help="fields to set in every request body",
    )
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="header to send with every request",
    )
    group.add_argument(
        "--key",
        default=os.environ.get("EAGLEGATE_API_KEY"),
        help="API key, sent with every request [EAGLEGATE_API_KEY]",
    )
    group.add_argument("--timeout", type=parse_number, default=600.0, metavar="SECONDS",
                       help="end a request after this much silence from the server")  # fmt: skip


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        default="mixed",
        help=f"file, folder, random:INPUT:OUTPUT, or {', '.join(list_own_sets())}",
    )
    group.add_argument("--max-tokens", type=int, default=128)
    group.add_argument("--temperature", type=parse_number, default=0.0)
    group.add_argument("--seed", type=int, default=0)  # fmt: skip


def add_result_arguments(group: Any) -> None:
    group.add_argument(
        "--out", metavar="DIR", help="folder for report.json, report.html and the journal"
    )
    group.add_argument("--resume", action="store_true", help="continue the run in --out")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


def make_plan(options: argparse.Namespace, flags: Sequence[str]) -> BenchPlan:
    """Make the plan of the run. Raises BenchError, DataError, ServerError and ValueError."""
    depths = parse_depths(options.depths) if options.depths else ()
    settings, has_baseline = choose_settings(options, flags, depths)
    trace = Path(options.data)
    sessions = (
        read_trace(trace) if is_trace(trace) else load_sessions(options.data, seed=options.seed)
    )
    if options.rate == "trace" and not any(turn.arrival_s for s in sessions for turn in s.turns):
        raise BenchError(f"--rate trace: {options.data} records no times; give a capture or trace")
    defaults = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    return BenchPlan(
        settings=settings,
        has_baseline=has_baseline,
        loads=choose_loads(options),
        sessions=tuple(sessions),
        requests=options.requests,
        repeats=options.repeats,
        warmup=options.warmup,
        seed=options.seed,
        model=options.model,
        defaults=defaults,
        headers=make_headers(options),
        timeout_s=options.timeout,
        goal=Goal.parse(options.goodput) if options.goodput else None,
        depths=depths,
    )


def make_headers(options: argparse.Namespace) -> dict[str, str]:
    """Return the headers of every request. Raises ValueError unless they are ``NAME: VALUE``."""
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    for line in options.header:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("--header: write NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def choose_loads(options: argparse.Namespace) -> tuple[LoadPoint, ...]:
    """Return the load points that the options ask for. Raises ValueError."""
    if options.rate == "trace":
        return (LoadPoint(speed=1.0),)
    if options.rate:
        return tuple(
            LoadPoint(rate=parse_number(rate), burstiness=options.burstiness, burst=options.burst)
            for rate in options.rate.split(",")
        )
    return tuple(LoadPoint(concurrency=int(count)) for count in options.concurrency.split(","))


def choose_settings(
    options: argparse.Namespace, flags: Sequence[str], depths: Sequence[int] = ()
) -> tuple[tuple[Setting, ...], bool]:
    """Choose the settings to measure, the baseline last. Raises BenchError, ServerError."""
    urls = [url.rstrip("/").removesuffix("/v1") for url in options.url]
    if urls and (flags or options.cost_scaled):
        raise BenchError("--url measures a running server; leave out --cost-scaled and flags")
    settings = [Setting(url, url, fields=options.fields) for url in urls]
    if not urls:
        serve_flags = _serve_flags(options, flags, depths[-1] if depths else DEMO_DEPTH)
        settings = [Setting("speculative", flags=serve_flags, fields=options.fields)]
    if depths:
        if len(urls) > 1 or options.baseline:
            raise BenchError(
                "--depths compares depths of one server with depth 0: leave out --baseline and a "
                "second --url"
            )
        return make_depth_settings(depths, settings[0]), True
    baseline = options.baseline or (None if urls else "none")
    if baseline is None:
        return name_settings(settings), len(urls) > 1
    return name_settings([*settings, read_baseline(baseline, settings[0])]), True


def _serve_flags(options: argparse.Namespace, flags: Sequence[str], depth: int) -> tuple[str, ...]:
    """Return the flags of the measured server. ``depth`` is the demo's K."""
    if not options.cost_scaled:
        draft_flags = demo_flags(DEMO / "target", DEMO / "eagle3_1", num_speculative_tokens=depth)
        return tuple(flags) or draft_flags
    folder = make_cost_scaled_demo(say)
    draft_flags = demo_flags(folder / "target", folder / "eagle3_1", num_speculative_tokens=depth)
    return (*draft_flags, *flags)


def read_baseline(text: str, setting: Setting) -> Setting:
    """Parse the baseline setting. Raises BenchError, ServerError."""
    if text == "none":
        if setting.url:
            raise BenchError(
                "--baseline none needs a server that this command can start: give a URL "
                "that serves without a draft, or fields, such as "
                "'{\"num_speculative_tokens\": 0}' for an eaglegate"
            )
        return Setting("none", flags=drop_speculation(setting.flags), fields=setting.fields)
    if baseline := read_setting(text, setting.fields, setting):
        return baseline
    if text.startswith("-") and not setting.url:
        return Setting(text, flags=(*setting.flags, *text.split()), fields=setting.fields)
    raise BenchError(f"--baseline {text}: write none, a URL, a JSON object of fields, or flags")
