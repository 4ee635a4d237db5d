"""A draft improves on live traffic by itself, and two bad ones do not get in.

    python -m eaglegate.lab.benchmarks.improve --out build/improve

A draft that has never seen a tool is trained (``--steps``), then served with ``--improve`` under
live traffic of tool calls and chat. The loop tunes it, compares, tries it live and promotes it.
Then a draft tuned on garbage and one that forgets chat are queued, and queued again past the gate.
Every text is compared with that of an engine without a draft. Runs on the built-in demo; killed, it
goes on with what is in ``--out`` already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import yaml

from eaglegate.canary.arms import TOOL_FAILURES
from eaglegate.capture.files import read_records, write_records
from eaglegate.lab.benchmarks.improve_data import ROOT, TARGET, make_bodies, train, write_answers
from eaglegate.lab.improve.ledger import Candidate, Ledger, Stage
from eaglegate.lab.measure.servers import demo_flags, drop_speculation
from tests.conftest import ADMIN, RunningGateway, serving

DEPTH = 5
TOOLS, CHAT, REFERENCE = 160, 30, 150
"""Requests: of the new domain and of chat before the loop has enough, and of older traffic."""
LIVE_TOOLS, LIVE_CHAT = 100, 40
"""Other prompts, sent again and again until the end, but for those whose calls fail without a draft
too: with 14 failures in a hundred the canary needs a thousand calls of each arm for its margin."""
BUSY_S, QUIET_S = 0.1, 30.0
"""Between two requests of one client: during a canary, and else."""
CLIENTS = 6
GARBAGE, FORGETFUL = "garbage", "forgetful"


@dataclass
class Traffic:
    """Sends chats and compares each text with the one an engine without a draft gave."""

    url: str
    texts: dict[str, str]
    sent: int = 0
    broken: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    pause_s: float = QUIET_S
    """Between two requests of one client."""
    stopped: bool = False

    async def send_all(self, bodies: Sequence[dict[str, Any]], at_a_time: int) -> None:
        queue = iter(bodies)

        async def work(client: httpx.AsyncClient) -> None:
            for body in queue:
                await self.send(client, body)

        async with httpx.AsyncClient(timeout=300) as client:
            await asyncio.gather(*(work(client) for _ in range(at_a_time)))

    async def go_on(self, bodies: Sequence[dict[str, Any]], at_a_time: int) -> None:
        """Send requests until the traffic is stopped. Every round of the same prompts has new
        sessions.
        """

        async def work(client: httpx.AsyncClient, first: int) -> None:
            number = first
            while not self.stopped:
                body = bodies[number % len(bodies)]
                session = f"{body['user']}-{number // len(bodies)}"
                await self.send(client, {**body, "user": session}, body["user"])
                number += at_a_time
                await asyncio.sleep(self.pause_s)

        async with httpx.AsyncClient(timeout=300) as client:
            await asyncio.gather(*(work(client, first) for first in range(at_a_time)))

    async def send(self, client: httpx.AsyncClient, body: dict[str, Any], name: str = "") -> None:
        name = name or body["user"]
        self.sent += 1
        try:
            text = await read_stream(client, self.url, body)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.broken.append(f"{name}: {error!r}")
            return
        if self.texts.setdefault(name, text) != text:
            self.different.append(name)


async def read_stream(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
    """Reasoning, content and calls in order. Raises ValueError for a stream without its end."""
    text, ended = "", False
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ValueError(str(chunk["error"]))
                for choice in chunk["choices"]:
                    text += read_delta(choice["delta"])
    if not ended:
        raise ValueError("the stream ended early")
    return text


def read_delta(delta: dict[str, Any]) -> str:
    functions = [call["function"] for call in delta.get("tool_calls") or ()]
    calls = "".join((one.get("name") or "") + (one.get("arguments") or "") for one in functions)
    return (delta.get("reasoning") or "") + (delta.get("content") or "") + calls


@dataclass(frozen=True)
class Demonstration:
    """Folders and sizes of the demonstration."""

    out: Path
    steps: int
    tune_steps: int
    threads: int

    @property
    def state(self) -> Path:
        return self.out / "state"

    @property
    def config(self) -> Path:
        return self.out / "improve.yaml"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.state / "ledger.sqlite3")

    def flags(self, draft: Path) -> tuple[str, ...]:
        speculation = demo_flags(TARGET, draft, num_speculative_tokens=DEPTH)
        return (*speculation, "--responses-store=none", *ADMIN)

    def train_base(self) -> Path:
        """Chat alone, from nothing."""
        data = self.out / "chat.jsonl"
        if not data.exists():
            write_answers(data, "chat", 5, 3000)
        how = ("--steps", str(self.steps), "--batch-tokens", "2048", "--depths", str(DEPTH))
        return train(self.out / "base", data, *how, threads=self.threads)

    def train_bad(self, start: Path) -> dict[str, Path]:
        """Train bad drafts from the promoted one, as a tuner that went wrong would."""
        garbage = write_answers(self.out / "garbage.jsonl", "tools", 31, 60, garbage=True)
        chat = write_answers(self.out / "chat-garbage.jsonl", "chat", 32, 120, garbage=True)
        tools = write_answers(self.out / "narrow.jsonl", "tools", 33, 120)
        with tools.open("a", encoding="utf-8") as file:
            file.write(chat.read_text(encoding="utf-8"))
        how = ("--batch-tokens", "2048", "--depths", "3", "--matrix-lr", "0.01", "--steps")
        return {
            name: train(self.out / name, data, *how, steps, init=start, threads=self.threads)
            for name, data, steps in ((GARBAGE, garbage, "40"), (FORGETFUL, tools, "120"))
        }

    def write_config(self) -> None:
        """``pause_s``: after the first candidate only those that are queued.

        ``slice_margin``: a slot has some ten chats, and the comparison had fifty.
        """
        how = ["--batch-tokens", "2048", "--depths", str(DEPTH)]
        content = {
            "state": str(self.state),
            "capture": str(self.out / "capture"),
            "reference": str(self.out / "reference"),
            "keep": str(self.out / "chat.jsonl"),
            "window": {"answers": TOOLS - 10, "sessions": 100, "pause_s": 86400},
            "tune": {"steps": self.tune_steps, "keep_share": 0.8, "arguments": how},
            "gate": {"targets": ["workload tools"], "depth": DEPTH, "limit": 200},
            "canary": {"slot_s": 10, "max_s": 3600, "slice_margin": 0.05},
            "poll_s": 1,
        }
        self.config.write_text(yaml.safe_dump(content))

    def queue(self, draft: Path, *more: str) -> int:
        command = [
            sys.executable,
            "-m",
            "eaglegate.server",
            "improve",
            "--config",
            str(self.config),
        ]
        command += ["--candidate", str(draft), *more]
        subprocess.run(command, cwd=ROOT, check=True)
        return self.ledger.list_candidates()[-1].id

    async def wait_for(self, number: int, traffic: Traffic) -> Candidate:
        """Traffic is light but for the canaries, so that two cores tune beside it."""
        while True:
            with suppress(StopIteration):
                found = self.ledger.read(number)
                traffic.pause_s = BUSY_S if found.stage is Stage.CANARY else QUIET_S
                if found.verdict is not None:
                    say(f"candidate {number} {found.verdict}: {found.reason}")
                    return found
            await asyncio.sleep(1)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def make_traffic() -> dict[str, list[dict[str, Any]]]:
    mixed = make_bodies("tools", 21, TOOLS) + make_bodies("chat", 22, CHAT)
    live = make_bodies("tools", 23, LIVE_TOOLS) + make_bodies("chat", 24, LIVE_CHAT)
    # An order in which the domains alternate: hashes are as good as a shuffle.
    return {
        "reference": make_bodies("chat", 20, REFERENCE),
        "mixed": sorted(mixed, key=lambda body: hash_name(body["user"])),
        "live": sorted(live, key=lambda body: hash_name(body["user"])),
    }


def hash_name(name: str) -> int:
    number = int(name.rpartition("-")[2])
    return number * 2654435761 % 2**32


async def read_plain_texts(run: Demonstration, base: Path) -> dict[str, str]:
    """Texts of an engine without a draft; the first of its requests are the older traffic."""
    known = run.out / "texts.json"
    if known.exists():
        return dict(json.loads(known.read_text()))
    bodies = make_traffic()
    capture = run.out / "plain"
    flags = drop_speculation(run.flags(base))
    more = ("--capture", str(capture), "--capture-share", "1")
    with serving(run.out / "plain.log", (*flags, *more)) as gateway:
        traffic = Traffic(gateway.url, {})
        await traffic.send_all(bodies["reference"], 16)
        until = time.time()
        await traffic.send_all(bodies["mixed"] + bodies["live"], 16)
    assert not traffic.broken, traffic.broken
    (run.out / "reference").mkdir(exist_ok=True)
    older = [one for one in read_records(capture) if (one.arrived or 0) < until]
    write_records(run.out / "reference" / "older.jsonl", older)
    known.write_text(json.dumps(traffic.texts))
    say(f"{len(traffic.texts)} texts without a draft, {len(older)} requests of older traffic")
    return traffic.texts


def find_failing(capture: Path) -> set[str]:
    """Names of the prompts to which the target, without a draft, writes calls that fail."""
    return {
        str((record.body or {})["user"])
        for record in read_records(capture)
        if any(set(choice.tools) & set(TOOL_FAILURES) for choice in record.choices)
    }


async def demonstrate(run: Demonstration) -> dict[str, Any]:
    base = run.train_base()
    texts = await read_plain_texts(run, base)
    run.write_config()
    kept: tuple[str, ...] = ("--draft-store", str(run.out / "store"), "--improve", str(run.config))
    kept += ("--capture", str(run.out / "capture"), "--capture-share", "1")
    with serving(run.out / "serve.log", (*run.flags(base), *kept)) as gateway:
        traffic = Traffic(gateway.url, texts)
        bodies = make_traffic()
        failing = find_failing(run.out / "plain")
        live = [body for body in bodies["live"] if body["user"] not in failing]
        say("serving; the loop waits for traffic")
        await traffic.send_all(bodies["mixed"], 16)
        going = asyncio.create_task(traffic.go_on(live, CLIENTS))
        try:
            candidates = await run_candidates(run, gateway, traffic)
        finally:
            traffic.stopped = True
            await going
        state = await asyncio.to_thread(find_drafts, gateway)
        return summarise(candidates, traffic, state)


async def run_candidates(
    run: Demonstration, gateway: RunningGateway, traffic: Traffic
) -> list[Candidate]:
    found = [await run.wait_for(1, traffic)]
    promoted = (await asyncio.to_thread(find_drafts, gateway))["promoted"]["path"]
    bad = await asyncio.to_thread(run.train_bad, Path(promoted))
    for force, draft in product(((), ("--force",)), bad.values()):
        number = await asyncio.to_thread(run.queue, draft, *force)
        found.append(await run.wait_for(number, traffic))
    return found


def find_drafts(gateway: RunningGateway) -> dict[str, Any]:
    return dict(httpx.get(f"{gateway.operator}/admin/draft").json())


def summarise(
    candidates: Sequence[Candidate], traffic: Traffic, state: dict[str, Any]
) -> dict[str, Any]:
    return {
        "requests": traffic.sent,
        "broken_streams": traffic.broken,
        "texts_different": dict(Counter(traffic.different)),
        "serving_is_promoted": state["serving"] == state["promoted"],
        "promoted_is_the_tuned": state["promoted"]["fingerprint"] == candidates[0].fingerprint,
        "verdicts": [one.verdict for one in candidates],
        "costs": {one.id: one.live["cost"] for one in candidates if "cost" in one.live},
        "pauses_ms": sorted(round(1000 * swap["pause_s"]) for swap in state["swaps"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400, help="of the draft without tools")
    parser.add_argument("--tune-steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2, help="of trainings outside the loop")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    run = Demonstration(out, options.steps, options.tune_steps, options.threads)
    found = asyncio.run(demonstrate(run))
    (run.out / "summary.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    for number in [""] + [str(one.id) for one in run.ledger.list_candidates()]:
        command = [
            sys.executable,
            "-m",
            "eaglegate.server",
            "drafts",
            "log",
            str(run.state),
            number,
        ]
        subprocess.run([part for part in command if part], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
