"""Kill the engine again and again under greedy streams, and compare with an undisturbed run.

    python -m tests.faults.kills --kills 20 --streams 16

Every stream that ends is followed by the same request again, so that the engine is never idle.
The gateway runs with default flags.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from tests.conftest import RunningGateway, serving
from tests.faults import engine_process, streams

PAUSE_S = 1.5
"""Time that the streams run between two kills."""


@dataclass
class Report:
    """Kills, and the streams that they broke or changed."""

    kills: int = 0
    streams: int = 0
    broken: int = 0
    differing: int = 0
    cold_start_s: float = 0.0
    recoveries_s: list[float] = field(default_factory=list)
    outcomes: dict[str, float] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def recovery_ratio(self) -> float:
        """The median recovery beside the cold start of the same gateway."""
        ranked = sorted(self.recoveries_s)
        return ranked[len(ranked) // 2] / self.cold_start_s if ranked else 0.0


async def disturbed(
    gateway: RunningGateway, report: Report, streams_: int, tokens: int, minutes: float
) -> None:
    bodies = streams.requests(streams_, tokens)
    reference = await streams.hear_all(gateway.url, bodies)
    assert all(heard.whole for heard in reference), [h.error for h in reference]
    stop = asyncio.Event()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=600, limits=limits) as client:
        clients = [
            asyncio.create_task(_again_and_again(client, body, wanted, stop, report))
            for body, wanted in zip(bodies, reference, strict=True)
        ]
        await _kill(gateway, report, client, minutes)
        stop.set()
        await asyncio.gather(*clients)
    report.outcomes = {
        outcome: gateway.metric("eaglegate_interrupted_requests_total", outcome=outcome) or 0
        for outcome in ("rerun", "resumed", "replayed", "lost", "quarantined")
    }


async def _again_and_again(client, body, wanted, stop, report) -> None:
    while not stop.is_set():
        heard = await streams.hear(client, body)
        report.streams += 1
        report.broken += not heard.whole
        report.differing += heard.said != wanted.said
        if heard.error is not None or heard.said != wanted.said:
            why = str(heard.error or difference(wanted.said, heard.said))[:200]
            report.errors[why] = report.errors.get(why, 0) + 1
            print(f"broken or differing: {why}", file=sys.stderr)


PARTS = ("content", "reasoning", "calls", "logprobs", "finish", "tokens")


def difference(wanted: tuple, heard: tuple) -> str:
    """The first place where two accounts of one stream differ; empty if there is none."""
    for name, a, b in zip(PARTS, map(str, wanted), map(str, heard), strict=True):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            return f"{name} at {at}: {a[at : at + 40]!r} became {b[at : at + 40]!r}"
    return ""


async def _kill(
    gateway: RunningGateway, report: Report, client: httpx.AsyncClient, minutes: float
) -> None:
    goal, report.kills = report.kills, 0
    end = time.monotonic() + 60 * minutes
    while report.kills < goal and time.monotonic() < end:
        report.kills += 1
        await asyncio.sleep(PAUSE_S)
        assert engine_process.kill(gateway.process.pid, signal.SIGKILL)
        began = time.monotonic()
        await _until(client, 503)
        await _until(client, 200)
        report.recoveries_s.append(time.monotonic() - began)
        print(
            f"kill {report.kills}: back after {report.recoveries_s[-1]:.1f} s; so far "
            f"{report.streams} streams, {report.broken} broken, {report.differing} differing",
            file=sys.stderr,
        )


async def _until(client: httpx.AsyncClient, status: int) -> None:
    async with asyncio.timeout(300):
        while (await client.get("/ready")).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def run(kills: int, streams_: int, tokens: int, log: Path, minutes: float = 12) -> Report:
    report = Report(kills=kills)
    began = time.monotonic()
    with serving(log) as gateway:
        report.cold_start_s = gateway.metric("eaglegate_engine_start_seconds") or (
            time.monotonic() - began
        )
        asyncio.run(disturbed(gateway, report, streams_, tokens, minutes))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=700)
    parser.add_argument("--minutes", type=float, default=10, help="stop killing after this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(
            given.kills, given.streams, given.tokens, Path(folder) / "serve.log", given.minutes
        )
    print(json.dumps(asdict(report) | {"recovery_ratio": report.recovery_ratio}, indent=2))
    return 1 if report.broken or report.differing else 0


if __name__ == "__main__":
    sys.exit(main())
