"""Does a replay find what changed, and nothing else? The demo's traffic, captured and sent again.

    python -m eaglegate.lab.benchmarks.replay_proof FOLDER [--requests 500] [--repeats 1]

Serves the demo with a capture of everything, sends mixed requests (chat, tools, structured output,
reasoning, sessions of several turns, clients that leave), and replays the capture:

    same       one server twice (--repeats times): no difference may be found
    depth      one draft token a step against three: slower and fewer tokens a step
    template   a chat template that writes tools in other words: the requests with tools differ

Each row names its command; the reports stay in FOLDER.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from eaglegate.lab.benchmarks.improve_data import make_bodies
from eaglegate.lab.measure.servers import DEMO, Setting, demo_flags, serve
from tests.faults.streams import STRUCTURED

SHARES = {"chat": 0.35, "tools": 0.3, "structured": 0.15, "reasoning": 0.2}
LEAVES = 0.05
"""Share of clients that leave after some tokens."""
AT_ONCE = 4


def make_traffic(count: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    kinds = draw.choices(list(SHARES), list(SHARES.values()), k=count)
    made = {domain: iter(make_bodies(domain, seed, count)) for domain in ("chat", "tools")}
    bodies = []
    for kind in kinds:
        body = next(made["tools" if kind == "tools" else "chat"])
        if kind == "structured":
            body |= {"response_format": STRUCTURED}
        elif kind == "reasoning":
            body |= {"reasoning_effort": "high"}
        bodies.append(body | {"stream": draw.random() < 0.7})
    return bodies


async def send_all(url: str, bodies: Sequence[dict[str, Any]], seed: int) -> None:
    draw, room = random.Random(seed), asyncio.Semaphore(AT_ONCE)

    async def send(client: httpx.AsyncClient, body: dict[str, Any], leaves: bool) -> None:
        async with (
            room,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            lines = answer.aiter_lines()
            async for _ in lines:
                if leaves:
                    return

    async with httpx.AsyncClient(base_url=url, timeout=600) as client, asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(send(client, body, draw.random() < LEAVES))


async def capture(folder: Path, count: int, seed: int) -> Path:
    flags = demo_flags(DEMO / "target", DEMO / "eagle3_1")
    flags += ("--capture", str(folder / "capture"), "--capture-share", "1")
    async with serve(Setting("capture", flags=flags), folder / "capture.log", print) as url:
        await send_all(url, make_traffic(count, seed), seed)
    return folder / "capture"


def perturb_template(folder: Path) -> Path:
    text = (DEMO / "target" / "chat_template.jinja").read_text()
    words = "To call a tool, write JSON inside <tool_call></tool_call>."
    assert words in text
    file = folder / "template.jinja"
    file.write_text(text.replace(words, "Tools may help. Answer by yourself where you can."))
    return file


def compare(folder: Path, name: str, captured: Path, *against: str) -> dict[str, Any]:
    """Run ``eaglegate replay`` and print what it found."""
    settings = [f"--against={text}" for text in against]
    given = [str(captured), *settings, "--closed-loop", "--quiet", f"--out={folder / name}"]
    print(f"\n== {name}: eaglegate replay {shlex.join(given)}", flush=True)
    status = subprocess.run(
        [sys.executable, "-m", "eaglegate.server", "replay", *given], check=False
    ).returncode
    report: dict[str, Any] = json.loads((folder / name / "report.json").read_text())
    print(f"== {name}: exit status {status}, {report['verdict']}", flush=True)
    return report


async def serve_and_compare(
    folder: Path, name: str, captured: Path, *fields: str
) -> dict[str, Any]:
    flags = demo_flags(DEMO / "target", DEMO / "eagle3_1")
    async with serve(Setting(name, flags=flags), folder / f"{name}.log", print) as url:
        return await asyncio.to_thread(compare, folder, name, captured, url, *(fields or (url,)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", default="", help="same, depth or template")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    captured = folder / "capture"
    if not captured.exists():
        asyncio.run(capture(folder, given.requests, given.seed))
    if given.only in ("", "same"):
        for number in range(given.repeats):
            asyncio.run(serve_and_compare(folder, f"same-{number}", captured))
    if given.only in ("", "depth"):
        asyncio.run(serve_and_compare(folder, "depth", captured, '{"num_speculative_tokens": 1}'))
    if given.only in ("", "template"):
        flags = shlex.join(demo_flags(DEMO / "target", DEMO / "eagle3_1"))
        changed = f"serve {flags} --chat-template {perturb_template(folder)}"
        compare(folder, "template", captured, f"serve {flags}", changed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
