"""``eaglegate bench``: settings side by side under load, taking turns in one run.

Every repeat visits every load point, and at each of them every setting in turn, in alternating
order, so that a disturbance of the machine affects all settings. Ratios pair the blocks of one
repeat, and intervals are computed from the repeats. A journal makes a run resumable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from eaglegate.engine.totals import Totals
from eaglegate.lab.measure.counters import Counters, parse_counters
from eaglegate.lab.measure.datasets import Session, take_block
from eaglegate.lab.measure.figures import Block, Goal
from eaglegate.lab.measure.load import (
    LoadClient,
    Target,
    draw_arrivals,
    draw_bursts,
    read_arrivals,
    run_closed,
    run_open,
)
from eaglegate.lab.measure.runs import BenchError, RunJournal, open_clients, strip_private
from eaglegate.lab.measure.servers import Say, Setting
from eaglegate.lab.measure.stream import RequestResult


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Load at a concurrency, or with arrivals at a rate."""

    concurrency: int = 0
    rate: float = 0.0
    """Sessions per second; 0 for a concurrency or a recorded trace."""
    burstiness: float = 1.0
    burst: int = 0
    """Number of sessions that arrive at once."""
    speed: float = 0.0
    """Factor by which recorded arrivals are sped up."""

    @property
    def name(self) -> str:
        if self.concurrency:
            return f"{self.concurrency}"
        if self.speed:
            return f"trace x{self.speed:g}"
        shape = f" in bursts of {self.burst}" if self.burst else ""
        return f"{self.rate:g}/s{shape}"

    async def send(
        self,
        client: LoadClient,
        sessions: Sequence[Session],
        seed: int,
        report: Any,
    ) -> float:
        if self.concurrency:
            return await run_closed(client, sessions, self.concurrency, report)
        count = len(sessions)
        if self.speed:
            times = read_arrivals(sessions, self.speed)
        elif self.burst:
            times = draw_bursts(count, self.rate, self.burst)
        else:
            times = draw_arrivals(count, self.rate, self.burstiness, seed)
        return await run_open(client, sessions, times, report)


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Plan of a run. A journal belongs to a run only if the whole plan is the same."""

    settings: tuple[Setting, ...]
    """Settings, with the baseline last if ``has_baseline``."""
    has_baseline: bool
    loads: tuple[LoadPoint, ...]
    sessions: tuple[Session, ...]
    requests: int
    """Approximate number of requests per block, as sessions are not split. 0 means four times the
    concurrency, at least 8.
    """
    repeats: int
    warmup: int
    seed: int
    model: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    goal: Goal | None = None
    depths: tuple[int, ...] = ()
    """All depths of one engine that are compared, in rising order and including 0."""

    @property
    def baseline(self) -> Setting | None:
        return self.settings[-1] if self.has_baseline else None

    @property
    def shares_server(self) -> bool:
        """True if settings share a server, and must not find each other's prompts in its cache."""
        return len({setting.server for setting in self.settings}) < len(self.settings)

    def take_sessions(self, load: LoadPoint, repeat: int) -> list[Session]:
        if load.speed:
            return sorted(self.sessions, key=lambda session: session.turns[0].arrival_s or 0.0)
        requests = self.requests or max(8, 4 * load.concurrency)
        return take_block(list(self.sessions), repeat, requests)

    def order(self) -> Iterator[tuple[int, LoadPoint, Setting]]:
        """Yield the blocks in the order in which they run."""
        for repeat in range(self.repeats):
            turn = self.settings if repeat % 2 == 0 else self.settings[::-1]
            for load in self.loads:
                for setting in turn:
                    yield repeat, load, setting

    def count_requests(self) -> int:
        return sum(
            len(session.turns)
            for repeat, load, _ in self.order()
            for session in self.take_sessions(load, repeat)
        )

    def digest(self) -> dict[str, Any]:
        """Return the parts of the plan that must not change when a journal is continued."""
        return {
            "settings": [asdict(setting) for setting in self.settings],
            "loads": [load.name for load in self.loads],
            "sessions": [session.id for session in self.sessions],
            "requests": self.requests,
            "repeats": self.repeats,
            "seed": self.seed,
            "defaults": self.defaults,
        }


class BenchJournal(RunJournal):
    """Finished blocks."""

    def __init__(self, path: Path, digest: dict[str, Any], *, resume: bool) -> None:
        super().__init__(path, digest, resume=resume)
        self.blocks = [_read_block(row) for row in self.rows]

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        row = {
            "setting": block.setting,
            "load": block.load,
            "number": block.number,
            "duration": block.duration,
            "totals": None if block.totals is None else asdict(block.totals),
            "results": [strip_private(result) for result in block.results],
        }
        self.append(row)

    def has(self, setting: str, load: str, number: int) -> bool:
        return any((b.setting, b.load, b.number) == (setting, load, number) for b in self.blocks)


def _read_block(row: dict[str, Any]) -> Block:
    totals = None
    if row["totals"] is not None:
        counts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in row["totals"].items()
        }
        totals = Totals(**counts)
    results = tuple(RequestResult.from_json(result) for result in row["results"])
    return Block(row["setting"], row["load"], row["number"], row["duration"], results, totals)


async def check_depths(client: LoadClient, max_depth: int) -> None:
    """Raise BenchError if requests cannot set a depth, or not a depth this large."""
    target = client.target
    if not target.reports_steps:
        raise BenchError(
            f"--depths needs an eaglegate, whose requests may bring a depth; {target.url} is none"
        )
    try:
        limit = (await client.get("/ready")).json()["engine"]["num_speculative_tokens"]
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return  # the warm-up asks for every depth
    if max_depth > limit:
        raise BenchError(
            f"--depths: {target.url} drafts at most {limit} tokens, not {max_depth}: leave the "
            "deeper ones out, or start it with a greater num_speculative_tokens"
        )


async def run_bench(
    plan: BenchPlan, folder: Path, say: Say, *, resume: bool = False, bar: bool = True
) -> list[Block]:
    """Run all blocks and return them with those of a resumed journal. Raises BenchError,
    ServerError.
    """
    journal = BenchJournal(folder / "blocks.jsonl", plan.digest(), resume=resume)
    pending_blocks = [
        block for block in plan.order() if not journal.has(block[2].name, block[1].name, block[0])
    ]
    if not pending_blocks:
        return journal.blocks
    target = Target(
        "", plan.model, defaults=plan.defaults, headers=plan.headers, timeout_s=plan.timeout_s
    )
    async with open_clients(plan.settings, target, folder, say) as clients:
        if plan.depths:
            await check_depths(clients[plan.settings[0].name], plan.depths[-1])
        await _warm_up(plan, clients, say)
        num_results = sum(len(block.results) for block in journal.blocks)
        with tqdm(
            total=plan.count_requests(),
            initial=num_results,
            unit="req",
            disable=not bar,
            smoothing=0.1,
        ) as progress:
            for repeat, load, setting in pending_blocks:
                progress.set_description(
                    f"{repeat + 1}/{plan.repeats} C={load.name} {setting.name}"
                )
                client = clients[setting.name]
                block = await _run_block(plan, client, setting.name, load, repeat, progress)
                journal.add(block)
    return journal.blocks


async def _warm_up(plan: BenchPlan, clients: dict[str, LoadClient], say: Say) -> None:
    """Send some requests to every setting without counting them. Raises BenchError."""
    for name, client in clients.items():
        say(f"warming up {name}")
        results: list[RequestResult] = []
        sessions = take_block(list(plan.sessions), 0, max(1, plan.warmup))
        concurrency = max((load.concurrency for load in plan.loads), default=0) or 4
        await run_closed(client, sessions, concurrency, results.append)
        errors = [result.error for result in results if not result.ok]
        if len(errors) == len(results):
            raise BenchError(f"{name} answered no request of the warm-up: {errors[0]}")


async def _run_block(
    plan: BenchPlan,
    client: LoadClient,
    setting: str,
    load: LoadPoint,
    repeat: int,
    progress: Any,
) -> Block:
    sessions = plan.take_sessions(load, repeat)
    results: list[RequestResult] = []

    def report(result: RequestResult) -> None:
        results.append(result)
        progress.update()

    if plan.shares_server:
        client.cache_salt = f"{load.name} {repeat} {setting}"
    start = await read_counters(client)
    duration = await load.send(client, sessions, plan.seed + repeat, report)
    end = await read_counters(client)
    block = Block(setting, load.name, repeat, duration, tuple(results))
    growth = end - start if start is not None and end is not None else None
    if growth is None or growth.reset:
        return block
    recomputed = growth.value("draft_recomputed_tokens_total")
    return replace(block, totals=growth.totals(), recomputed_tokens=recomputed)


async def read_counters(client: LoadClient) -> Counters | None:
    """Read the counters of /metrics; None if there is no such page."""
    try:
        reply = await client.get("/metrics")
    except httpx.HTTPError:
        return None
    return parse_counters(reply.text) if reply.status_code == httpx.codes.OK else None


def name_settings(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings with distinct names."""
    out: list[Setting] = []
    for setting in settings:
        count = sum(sibling.name.partition("#")[0] == setting.name for sibling in out)
        out.append(replace(setting, name=f"{setting.name}#{count + 1}") if count else setting)
    return tuple(out)
