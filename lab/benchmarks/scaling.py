"""Measure how a fleet scales: the gain of affinity, workers for a load, and a gateway's capacity.

    python -m eaglegate.lab.benchmarks.scaling balance  policies side by side on one simulated trace
    python -m eaglegate.lab.benchmarks.scaling sweep
        the same over growing loads: how much a worker takes
    python -m eaglegate.lab.benchmarks.scaling gateway  measured: CPU of a gateway process per token

The first two simulate workers (``lab/benchmarks/fleet_model.py``) and run the gateway's own
balancing
code; equal seeds give equal tables. The third serves three gateways from one process, alike but
for what is behind them, in turn: a scripted engine, a fleet of four of them, and a fleet of four
stand-in workers over HTTP in another process, which say what vLLM's servers say.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import uvicorn
import uvloop

from eaglegate.engine.base import Engine
from eaglegate.engine.fleet.discovery import StaticSource
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.fleet.types import FleetSettings
from eaglegate.engine.remote.engine import remote_engine
from eaglegate.engine.remote.upstream import ConnectionSettings, LocalModel, Upstream
from eaglegate.lab.benchmarks.fleet_model import POLICIES, Machine, Simulation, Trace
from eaglegate.lab.benchmarks.observing import INFO, Renderer, Server, make_app, round_of, scripted
from tests.engine.remote.stand_in_worker import StandIn, chunk, end, serving

NUM_WORKERS = 4
BEHIND = ("scripted engine", "fleet in process", "fleet over HTTP")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("what", choices=("balance", "sweep", "gateway"))
    options.add_argument("--workers", type=int, default=NUM_WORKERS)
    options.add_argument("--gateways", type=int, default=1, help="that know nothing of one another")
    options.add_argument("--sessions-per-s", type=float, nargs="+", default=None)
    options.add_argument("--seconds", type=float, default=60.0, help="in which sessions begin")
    options.add_argument("--policies", nargs="+", choices=tuple(POLICIES), default=None)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--tokens", type=int, default=200, help="per answer")
    given = options.parse_args()
    if given.what == "gateway":
        asyncio.run(measure(given.rounds, given.tokens))
        return
    many = given.what == "sweep"
    rates = given.sessions_per_s or ([1, 2, 3, 4, 6, 8] if many else [4])
    policies = given.policies or ([*POLICIES] if not many else ["round robin", "affinity"])
    fleet = Fleets(given.workers, given.gateways, given.seconds, given.seed)
    simulate(fleet, rates, policies)


@dataclass(frozen=True, slots=True)
class Fleets:
    """Parts of a simulation that are the same for every load and policy."""

    workers: int
    gateways: int
    seconds: float
    seed: int

    def run(self, rate: float, policy: str) -> Simulation:
        trace = Trace(sessions_per_s=rate, seconds=self.seconds)
        run = Simulation(trace, Machine(), self.workers, policy, self.seed, self.gateways)
        run.run()
        return run


HEAD = (
    "sessions/s", "policy", "requests", "hit rate", "prefilled", "TTFT p50", "TTFT p99",
    "imbalance", "busy",
)  # fmt: skip


def simulate(fleet: Fleets, rates: Sequence[float], policies: Sequence[str]) -> None:
    """Print a table; *prefilled* is beside what the first policy prefills at that load."""
    print(f"{fleet}\n")
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for rate in rates:
        first = None
        for policy in policies:
            run = fleet.run(rate, policy)
            first = first or run
            print("| " + " | ".join((f"{rate:g}", policy, *figures(run, first))) + " |", flush=True)


def figures(run: Simulation, first: Simulation) -> list[str]:
    """``imbalance``: the busiest worker's time at work beside the mean; ``busy``: the mean's part
    of the whole time."""
    ttft = sorted(run.ttft)
    worked = [worker.worked_s for worker in run.workers.values()]
    mean = statistics.mean(worked)
    prefilled = [one.prompt_tokens - one.cached_tokens for one in (run, first)]
    return [
        str(len(ttft)),
        f"{run.cached_tokens / run.prompt_tokens:.1%}",
        f"{prefilled[0] / prefilled[1]:.2f}",
        f"{quantile(ttft, 0.5) * 1e3:.0f} ms",
        f"{quantile(ttft, 0.99) * 1e3:.0f} ms",
        f"{max(worked) / mean:.2f}",
        f"{mean / run.ended_at:.0%}",
    ]


def quantile(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


async def measure(rounds: int, tokens: int) -> None:
    """Rounds in turn, the order reversed every time; ratios are paired within a round."""
    server = Gateways(tokens)
    cost: dict[str, list[float]] = {name: [] for name in BEHIND}
    try:
        for at in range(rounds + 1):
            for name in BEHIND if at % 2 else reversed(BEHIND):
                spent = await round_of(server, name, 8, tokens)
                if at:
                    cost[name].append(spent)
    finally:
        server.close()
    for name in BEHIND:
        pairs = zip(cost[name], cost[BEHIND[0]], strict=True)
        ratio = statistics.median(mine / base for mine, base in pairs)
        median = statistics.median(cost[name])
        a_core = f"{1e6 / median:9.0f} tokens/s per core"
        print(f"{name:18} {median:7.2f} us of CPU per token, {a_core}, x{ratio:.2f}")


class Gateways(Server):
    """The process with three gateways in it, and one with the workers."""

    def __init__(self, tokens: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._workers, workers = spawn.Pipe()
        self._theirs = spawn.Process(target=run_workers, args=(tokens, workers))
        self._theirs.start()
        workers.close()
        self._pipe, there = spawn.Pipe()
        addresses = self._workers.recv()
        self.process = spawn.Process(target=run_gateways, args=(tokens, addresses, there))
        self.process.start()
        there.close()
        ports = self._pipe.recv()
        self.urls = {
            name: f"http://127.0.0.1:{port}" for name, port in zip(BEHIND, ports, strict=True)
        }

    def close(self) -> None:
        super().close()
        self._workers.close()
        self._theirs.join()


def run_gateways(tokens: int, addresses: list[str], told: Connection) -> None:
    uvloop.run(_gateways(tokens, addresses, told))


async def _gateways(tokens: int, addresses: list[str], told: Connection) -> None:
    model = LocalModel("demo", Renderer(), INFO.vocab_size)
    access = ConnectionSettings(start_s=5.0)
    engines: list[Engine] = [
        scripted(tokens),
        _fleet(lambda _: scripted(tokens), [f"w{at}" for at in range(NUM_WORKERS)]),
        _fleet(lambda one: remote_engine(Upstream.parse(one), model, access), addresses),
    ]
    servers, running, ports = [], [], []
    for engine in engines:
        await engine.start()
        listener = socket.create_server(("127.0.0.1", 0))
        ports.append(listener.getsockname()[1])
        app = make_app(engine, observing=True)
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
        servers.append(uvicorn.Server(config))
        running.append(asyncio.create_task(servers[-1].serve(sockets=[listener])))
    told.send(ports)
    with suppress(EOFError):
        await asyncio.to_thread(told.recv)
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*running, *(engine.aclose() for engine in engines))


def _fleet(make: Any, addresses: Sequence[str]) -> Fleet:
    return Fleet(make, [StaticSource(addresses)], settings=FleetSettings(start_s=30.0))


def run_workers(tokens: int, told: Connection) -> None:
    asyncio.run(_workers(tokens, told))


async def _workers(tokens: int, told: Connection) -> None:
    """Serve workers that give the scripted engine's answer, step for step."""
    script = list(scripted(tokens).script(None))  # type: ignore[arg-type, operator]
    chunks = [chunk(*step.token_ids, finish=step.finish) for step in script]
    verified = [(step.drafted, step.accepted) for one in script for step in one.decode]
    said = [*chunks, end(*verified)]
    renderer = Renderer()
    async with AsyncExitStack() as stack:
        addresses = []
        for _ in range(NUM_WORKERS):
            worker = StandIn(script=lambda _body: said)
            worker.tokens = await asyncio.to_thread(_probed, renderer)
            addresses.append(await stack.enter_async_context(serving(worker.app())))
        told.send(addresses)
        with suppress(EOFError):
            await asyncio.to_thread(told.recv)


def _probed(renderer: Renderer) -> list[int]:
    from eaglegate.engine.remote.probe import PROBE

    return renderer.encode(PROBE, False)


if __name__ == "__main__":
    main()
