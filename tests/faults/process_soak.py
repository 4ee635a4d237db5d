"""Serve for an hour with the doctor and the auditor on, and measure growth in each process.

    python -m tests.faults.process_soak [--minutes 60] [--clients 2] [--out samples.json]

Two systems run at once, each with clients of every kind (``tests/faults/soak.py``): a gateway with
its engine, with audits and the doctor, and a gateway in front of a vLLM server. The first has the
gateway and the engine's front end in one process; the second has a process for each. Growth is a
slope over the second half, when caches are warm. The exit status is 1 if a count does not add up,
an answer is violated, or a request is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from eaglegate.lab.benchmarks.wire import clock_of, free_port, start_server_process
from tests.conftest import ADMIN, SAMPLE, RunningGateway, serving
from tests.faults import engine_process, soak, vanish
from tests.workers import ARGUMENTS, MODEL, OURS

SAMPLE_S = 2.0
BLOCKS = 30
"""Number of blocks in the second half, to whose means a slope is fitted."""
MOST_ALIKE = 0.9
"""Largest correlation of neighbouring blocks for which an interval is widened."""
Z = statistics.NormalDist().inv_cdf(0.975)
FLAGS = (*ADMIN, f"--workloads={soak.LEFT}")
WATCHED = ("--audit-share=0.05", "--doctor=watch")
BEHIND = ("--served-model-name=demo", "--tool-call-parser=hermes", "--reasoning-parser=qwen3")
SERVER = "vllm.entrypoints.openai.api_server"
SEPARATE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
BEYOND = "engine beyond requests: "
MEASURES = ("memory_mib", "cpu", "files", "threads")
Point = tuple[float, float]


@dataclass(frozen=True)
class Slope:
    """Growth per hour, with a 95 % interval."""

    value: float
    low: float
    high: float


def fit_slope(points: Sequence[Point]) -> Slope:
    """Fit Theil-Sen's slope with Sen's interval (1968), for times in seconds.

    Sen assumes independent errors. If neighbours are correlated, as in memory, the interval is too
    narrow, so the variance is multiplied by (1 + r) / (1 - r), r the correlation of neighbours.
    """
    slopes = soak.list_slopes(points)
    n, value = len(points), statistics.median(slopes)
    residuals = [y - value * x for x, y in points]
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * _widen(residuals))
    low_index = max(0, math.floor((len(slopes) - Z * spread) / 2))
    high_index = min(len(slopes) - 1, math.ceil((len(slopes) + Z * spread) / 2))
    return Slope(
        *(round(3600 * slope, 3) for slope in (value, slopes[low_index], slopes[high_index]))
    )


def _widen(residuals: Sequence[float]) -> float:
    mean = statistics.fmean(residuals)
    errors = [residual - mean for residual in residuals]
    power = sum(residual * residual for residual in errors)
    if not power:
        return 1.0
    correlation = min(MOST_ALIKE, max(0.0, sum(a * b for a, b in pairwise(errors)) / power))
    return (1 + correlation) / (1 - correlation)


def average_blocks(points: Sequence[Point], blocks: int = BLOCKS) -> list[Point]:
    """Return means of equally many points each, or the points themselves if there are too few."""
    size = max(1, len(points) // blocks)
    parts = [points[start : start + size] for start in range(0, len(points) - size + 1, size)]
    return [(statistics.fmean(x for x, _ in p), statistics.fmean(y for _, y in p)) for p in parts]


@dataclass
class Watch:
    """One process over time."""

    at: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU since the previous sample, in percent of a core."""
    files: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    _last: tuple[int, float, float] = (0, 0.0, 0.0)
    """Process, time and CPU seconds of the last sample."""

    def look(self, pid: int, clock: float) -> None:
        cpu_s = time.clock_gettime(clock_of(pid))
        last_sample, self._last = self._last, (pid, clock, cpu_s)
        if pid not in self.pids:
            self.pids.append(pid)
        if last_sample[0] != pid:
            return
        self.at.append(clock)
        self.memory_mib.append(engine_process.memory_mib(pid))
        self.cpu.append(100 * (cpu_s - last_sample[2]) / (clock - last_sample[1]))
        self.files.append(float(engine_process.open_files(pid)))
        self.threads.append(float(len(list(Path(f"/proc/{pid}/task").iterdir()))))

    def describe(self, measure: str) -> dict[str, object]:
        values: list[float] = getattr(self, measure)
        points = average_blocks(list(zip(self.at, values, strict=True))[len(values) // 2 :])
        return {
            "first": round(values[0], 1),
            "last": round(values[-1], 1),
            "most": round(max(values), 1),
            "mean": round(statistics.fmean(values), 1),
            "per_hour": asdict(fit_slope(points)) if len(points) > 2 else None,
        }


@dataclass
class System:
    """Gateway under load, and its processes."""

    name: str
    gateway: RunningGateway
    processes: dict[str, int]
    """Processes with an engine of their own, whose process is found again for every sample."""
    engine_of: int
    counts_drafts: bool
    """True if the gateway's metrics page has the engine's own counts."""
    watches: dict[str, Watch] = field(default_factory=lambda: defaultdict(Watch))
    answers: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    tokens_received: int = 0
    """Output tokens of complete answers, counted by their clients."""

    def look(self) -> None:
        now = time.monotonic()
        engine = engine_process.engine_pid(self.engine_of)
        for name, pid in (self.processes | ({"engine": engine} if engine else {})).items():
            try:
                self.watches[name].look(pid, now)
            except OSError:
                self.errors["process ended"] += 1

    async def ask(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        """Make one request of any kind. An error is counted, and the soak continues."""
        kind, body = soak.draw(chance)
        try:
            tokens = await kind(http, body)
            self.tokens_received += tokens
            self.answers[kind.__name__] += 1
        except Exception as error:
            self.errors[f"{kind.__name__}: {type(error).__name__}: {error}"[:160]] += 1


class CounterPage:
    """Metrics page at one moment."""

    def __init__(self, gateway: RunningGateway) -> None:
        text = httpx.get(f"{gateway.operator}/metrics", timeout=60).text
        self._samples = [(n, labels, float(v)) for n, labels, v in SAMPLE.findall(text)]

    def sum(self, name: str, exclusion: str = "\0") -> float:
        """Return the sum over all labels except those that contain ``exclusion``."""
        values = (
            value for n, labels, value in self._samples if n == name and exclusion not in labels
        )
        return sum(values)

    def list(self, name: str) -> dict[str, float]:
        return {labels: value for n, labels, value in self._samples if n == name}


def account(system: System, start_page: CounterPage, end_page: CounterPage) -> dict[str, float]:
    """Return unexplained tokens, which must be 0, and the engine's extra counts.

    Unexplained are tokens missing from the balance or the clients' own count. Extra counts are the
    doctor's trials, so they must not be negative.
    """

    def measure_growth(name: str, exclusion: str = "\0") -> float:
        full_name = name if name.startswith("vllm:") else f"eaglegate_{name}_total"
        return end_page.sum(full_name, exclusion) - start_page.sum(full_name, exclusion)

    names = ("first_tokens", "accepted_tokens", "decode_steps", "unaccounted_tokens")
    num_explained = sum(map(measure_growth, names)) - measure_growth("lost_bonus_tokens")
    exclusion_label = f'workload="{soak.LEFT}"'
    differences = {
        "balance": measure_growth("completion_tokens") - num_explained,
        "clients": measure_growth("completion_tokens", exclusion_label) - system.tokens_received,
    }
    if system.counts_drafts:
        num_verified = measure_growth("accepted_tokens") + measure_growth("cut_tokens")
        pairs = {
            "drafts": measure_growth("verify_steps") + measure_growth("unclaimed_verify_steps"),
            "draft_tokens": measure_growth("drafted_tokens")
            + measure_growth("unclaimed_drafted_tokens"),
            "accepted_tokens": num_verified + measure_growth("unclaimed_accepted_tokens"),
        }
        for name, num_own in pairs.items():
            differences[BEYOND + name] = (
                measure_growth(f"vllm:spec_decode_num_{name}_total") - num_own
            )
    return differences


async def load(system: System, options: argparse.Namespace, end: float) -> None:
    async def client(http: httpx.AsyncClient, chance: random.Random) -> None:
        while time.monotonic() < end:
            await system.ask(http, chance)
            await asyncio.sleep(options.pause_s)

    async with httpx.AsyncClient(base_url=system.gateway.url, timeout=300) as http:
        seeds = range(options.seed, options.seed + options.clients)
        clients = [asyncio.create_task(client(http, random.Random(seed))) for seed in seeds]
        while time.monotonic() < end:
            system.look()
            await asyncio.sleep(SAMPLE_S)
        await asyncio.gather(*clients)


@contextmanager
def run_systems(folder: Path) -> Iterator[list[System]]:
    with ExitStack() as stack:
        store = f"--responses-store=sqlite:///{folder}/one.sqlite"
        gateway = stack.enter_context(serving(folder / "one.log", (*FLAGS, *WATCHED, store)))
        port = free_port()
        command = [sys.executable, "-m", SERVER, *ARGUMENTS, *OURS, f"--port={port}"]
        worker = stack.enter_context(start_server_process("worker", port, command, SEPARATE))
        flags = (MODEL, *BEHIND, f"--upstream={worker.url}", *FLAGS)
        store = f"--responses-store=sqlite:///{folder}/two.sqlite"
        front = stack.enter_context(serving(folder / "two.log", (*flags, store)))
        local_processes = {"gateway and front end": gateway.process.pid}
        remote_processes = {"gateway": front.process.pid, "front end": worker.pid}
        yield [
            System(
                "engine of its own",
                gateway,
                local_processes,
                gateway.process.pid,
                counts_drafts=True,
            ),
            System(
                "in front of a server", front, remote_processes, worker.pid, counts_drafts=False
            ),
        ]


async def measure(systems: Sequence[System], options: argparse.Namespace) -> dict[str, object]:
    start_pages = [CounterPage(system.gateway) for system in systems]
    end = time.monotonic() + 60 * options.minutes
    await asyncio.gather(*(load(system, options, end) for system in systems))
    remnants = [await vanish.settled(system.gateway) for system in systems]
    return {
        system.name: report(system, start, CounterPage(system.gateway), remnant)
        for system, start, remnant in zip(systems, start_pages, remnants, strict=True)
    }


def report(
    system: System, start_page: CounterPage, end_page: CounterPage, remnant: int
) -> dict[str, object]:
    return {
        "answers": dict(system.answers),
        "errors": dict(system.errors),
        "requests_left_inside": remnant,
        "engine_restarts": max(0, len(system.watches["engine"].pids) - 1),
        "outcomes": end_page.list("eaglegate_requests_total"),
        "audits": end_page.list("eaglegate_audits_total"),
        "audits_dropped": end_page.list("eaglegate_audits_dropped_total"),
        "diagnoses": end_page.list("eaglegate_diagnoses_total"),
        "tokens": end_page.sum("eaglegate_completion_tokens_total"),
        "unexplained": account(system, start_page, end_page),
        "processes": {
            name: {measure: watch.describe(measure) for measure in MEASURES}
            for name, watch in system.watches.items()
        },
    }


def find_faults(reports: dict[str, dict]) -> list[str]:
    """Return the reasons for a failing exit status."""
    faults = []
    for name, system_report in reports.items():
        if system_report["errors"]:
            faults.append(f"{name}: errors")
        if system_report["requests_left_inside"] or system_report["engine_restarts"]:
            faults.append(f"{name}: requests left inside, or engines restarted")
        if any("violated" in labels for labels in system_report["audits"]):
            faults.append(f"{name}: violated answers")
        if any(
            count < 0 if BEYOND in name_of_count else count
            for name_of_count, count in system_report["unexplained"].items()
        ):
            faults.append(f"{name}: tokens do not add up")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=2, help="clients of each system")
    parser.add_argument("--pause-s", type=float, default=0.5, help="between requests of a client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for every sample, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, run_systems(Path(folder)) as systems:
        reports = asyncio.run(measure(systems, options))
    if options.out:
        samples = {s.name: {n: asdict(w) for n, w in s.watches.items()} for s in systems}
        options.out.write_text(json.dumps(samples))
    print(json.dumps(reports, indent=1))
    faults = find_faults(reports)  # type: ignore[arg-type]
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
