"""A day on a GPU in minutes: speculation seen with vLLM's defaults, on one card.

    python -m eaglegate.lab.benchmarks.gpu_day OUT [--limit-s 540] [--parts texts speeds ...]

Needs nothing but one GPU with 60 GB of memory; ``--small`` tries every part on a CPU instead. Two
models are served: the built-in demo, and the same model in the shape of an 8B Llama
(``lab/training/large_shape.py``), with K = 7 and without a draft, beside each other. While one
engine is measured, the other ones are idle.

The parts, in their order. The first two have the card to themselves; the others, which compare
texts and CPU, run beside each other:

=========  =========================================================================================
speeds     tokens per second by streams and depth: friendly, hostile, hostile with seeds
lengths    time to the first token and per token after prompts of 200, 4,000 and 30,000 tokens
texts      answers at depths 0, 1, 3 and by default, greedy and seeded, against depth 0 and no draft
exchange   a draft is exchanged, and a canary tries one in slots, while 16 streams run
kill       the engine's processes are killed under 16 streams
variants   the texts of the demo with FlashInfer's sampler, and in FP8
prove      ``eaglegate prove`` on the demo and on the large model
front_end  CPU per token of the gateway beside vLLM's server, at 16, 64 and 256 streams
=========  =========================================================================================

Each start is recorded with its seconds, their parts, and its GPU memory.
Every result is a line of ``OUT/results.jsonl``, written when it is known. A part that fails is
recorded with its error, and the next one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglegate.lab.benchmarks.gpu_servers import (
    GATEWAY,
    VLLM,
    Server,
    complete,
    list_descendants,
    list_gpu_memory,
    run_lap,
)
from eaglegate.lab.prove.blank_draft import make_blank_draft

DEMO = Path(__file__).parents[2] / "engine" / "demo"
QUESTIONS = Path(__file__).parents[1] / "measure" / "data" / "chat.jsonl"
PARTS = ("texts", "exchange", "kill", "variants", "prove", "speeds", "lengths", "front_end")
VARIANTS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "flashinfer": (
        (),
        {
            "VLLM_USE_FLASHINFER_SAMPLER": "1",
            "PYTHONPATH": os.environ.get("FLASHINFER_PATH", "")
            + os.pathsep
            + os.environ.get("PYTHONPATH", ""),
        },
    ),
    "fp8": (("--quantization=fp8",), {}),
}
"""Flags and environment of further engines of the demo. FLASHINFER_PATH leads to a FlashInfer that
the other engines shall not find."""
WORDS = (
    "stone", "river", "ledger", "quartz", "umbrella", "nine", "vector", "plum", "seven", "basin",
    "lantern", "grid", "orbit",
)  # fmt: skip
MAX_DEPTH = 7
SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 11},
    "seeded hot": {"temperature": 1.6, "seed": 4},
    "seeded top-k and top-p": {"temperature": 1.2, "seed": 6, "top_k": 20, "top_p": 0.9},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        },
    },
}  # fmt: skip
NUMBER = {
    "type": "json_schema",
    "json_schema": {
        "name": "number",
        "schema": {
            "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
Body = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Size of everything that is measured."""

    streams: tuple[int, ...] = (1, 4, 16, 64)
    prompts: int = 48
    lengths: tuple[int, ...] = (200, 4000, 30000)
    clients: tuple[int, ...] = (16, 64, 256)
    speeds_s: float = 120.0
    answers: int = 96
    """Tokens of an answer whose text is compared."""
    shape: tuple[str, ...] = ()
    """Flags of ``large_shape``."""
    demo: tuple[str, ...] = ()
    large: tuple[str, ...] = (
        "--max-model-len=32768", "--gpu-memory-utilization=0.3",
        f"--kv-cache-memory-bytes={12 << 30}",
    )  # fmt: skip
    """Engines that start beside others get their KV cache by its size: vLLM's measurement of free
    memory counts what its neighbours allocate meanwhile."""
    vllm: tuple[str, ...] = ("--gpu-memory-utilization=0.05", f"--kv-cache-memory-bytes={2 << 30}")
    prove: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


SMALL = Scale(
    streams=(1, 4),
    prompts=6,
    lengths=(200, 1000),
    clients=(4, 16),
    speeds_s=40.0,
    answers=32,
    shape=(
        "--hidden-size=512", "--intermediate-size=1024", "--num-hidden-layers=16",
        "--num-attention-heads=8", "--num-key-value-heads=4", "--device=cpu",
    ),
    large=("--max-model-len=4096", f"--kv-cache-memory-bytes={256 << 20}"),
    vllm=(f"--kv-cache-memory-bytes={256 << 20}", "--enforce-eager"),
    prove=("--quick",),
)  # fmt: skip


@dataclass
class Day:
    """Servers, results, and the time that is left."""

    out: Path
    scale: Scale
    limit_s: float
    parts: Sequence[str]
    start_time: float = field(default_factory=time.monotonic)
    servers: dict[str, Server] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.start_time)

    def record(self, part: str, **result: Any) -> None:
        line = {"part": part, "at_s": round(time.monotonic() - self.start_time, 1), **result}
        with (self.out / "results.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line)[:300], flush=True)

    @asynccontextmanager
    async def part(self, name: str, subject: str = "") -> AsyncIterator[None]:
        """Record the part's failure instead of raising it, and its time."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(max(0.1, self.left_s)):
                yield
        except Exception as error:
            self.record(name, subject=subject, failure=f"{type(error).__name__}: {error}"[:1500])
        finally:
            seconds = round(time.monotonic() - start, 1)
            self.record("time", of=name, subject=subject, seconds=seconds)

    def start(
        self,
        name: str,
        *arguments: str,
        module: str = GATEWAY,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        flags = self.scale.flags if module == GATEWAY else ()
        self.servers[name] = Server.start(name, self.out, [*arguments, *flags], module, environment)

    async def wait_ready(self, name: str) -> Server:
        server = self.servers[name]
        if server.ready_s:
            return server
        server.ready_s = seconds = await server.wait(max(1.0, self.left_s))
        memory = list_gpu_memory()
        pids = [server.process.pid, *(pid for pid, _ in list_descendants(server.process.pid))]
        self.record(
            "start",
            server=name,
            ready_s=round(seconds, 1),
            gpu_mib=sum(memory.get(pid, 0) for pid in pids),
            parts_s=server.read_start_parts(),
        )
        return server


def draw_chats(count: int, seed: int = 0) -> list[Body]:
    """Return friendly chats: questions of the demo's kind, which its draft predicts well."""
    draw = random.Random(seed)
    with QUESTIONS.open() as file:
        stock = [json.loads(line)["steps"][0] for line in file]
    chats = []
    for _ in range(count):
        summand, addend = draw.randrange(20, 90), draw.randrange(11, 60)
        question = (
            None,
            f"Compute {summand} + {addend}, step by step.",
            f"What is {summand} - {min(summand, addend)}?",
            f"Write a Python function that adds {summand} to a list of numbers.",
        )[draw.randrange(4)]
        messages = [{"role": "user", "content": question}] if question else draw.choice(stock)
        chats.append({"messages": messages, "temperature": 0, "max_tokens": 160})
    return chats


def draw_noise(count: int, seed: int | None) -> list[Body]:
    """Return hostile chats: random words at temperature 1.6, which no draft predicts."""
    draw = random.Random(3)
    sampling: Body = {"temperature": 1.6, "max_tokens": 100, "min_tokens": 60}
    if seed is not None:
        sampling["seed"] = seed
    return [
        {
            "messages": [{"role": "user", "content": " ".join(draw.choices(WORDS, k=20))}],
            **sampling,
        }
        for _ in range(count)
    ]


def at_depth(bodies: Sequence[Body], depth: int | None) -> list[Body]:
    """Return the bodies with a depth of their own; None leaves it to the gateway."""
    return [body if depth is None else {**body, "num_speculative_tokens": depth} for body in bodies]


async def compare_texts(day: Day, server: Server, reference: Server | None = None) -> None:
    """Compare answers at every depth with those at depth 0, and these with ``reference``'s."""
    chats = draw_chats(day.scale.prompts)
    for kind, sampling in SAMPLING.items():
        bodies = [{**chat, **sampling, "max_tokens": day.scale.answers} for chat in chats]
        reference_answers = await complete(server, at_depth(bodies, 0), 16)
        variants: dict[str, list[dict[str, Any]]] = {}
        for depth in (1, 3, None):
            variants[f"depth {depth}"] = await complete(server, at_depth(bodies, depth), 16)
        if kind == "greedy":
            variants["depth 0, alone"] = await complete(server, at_depth(bodies, 0), 1)
        if reference is not None:
            variants["no draft"] = await complete(reference, bodies, 16)
        for name, answers in variants.items():
            differences = [
                pair for pair in zip(reference_answers, answers, strict=True) if pair[0] != pair[1]
            ]
            day.record(
                "texts", server=server.name, kind=kind, against=name,
                equal=len(reference_answers) - len(differences), of=len(reference_answers),
                differing=differences[:2],
                errors=[answer for answer in answers if "error" in answer][:2],
            )  # fmt: skip
    await compare_structure(day, server)


async def compare_structure(day: Day, server: Server) -> None:
    """Compare tool calls and constrained answers at depths 0, 3 and by default."""
    chat = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}
    kinds: dict[str, Body] = {
        "tools": {"tools": [WEATHER]},
        "required tool": {"tools": [WEATHER], "tool_choice": "required"},
        "JSON schema": {"response_format": NUMBER},
    }
    for kind, fields in kinds.items():
        body = {**chat, **fields, "temperature": 0, "max_tokens": 120}
        bodies = [at_depth([body], depth)[0] for depth in (0, 3, None)]
        answers = await complete(server, bodies, 1)
        is_equal = all(answer == answers[0] for answer in answers)
        day.record("texts", server=server.name, kind=kind, equal=is_equal, sample=answers[0])


async def disturb_streams(
    day: Day, part: str, server: Server, disturb: Callable[[], Any], tokens: int = 400
) -> None:
    """Record whether 16 greedy answers are the same while ``disturb`` runs."""
    bodies = [{**chat, "max_tokens": tokens, "ignore_eos": True} for chat in draw_chats(16, seed=5)]
    expectation = await complete(server, bodies, 16)
    task = asyncio.create_task(complete(server, bodies, 16))
    await asyncio.sleep(0.4)
    start = time.monotonic()
    disturbance = await asyncio.to_thread(disturb)
    answers = await task
    day.record(
        part, server=server.name, disturbance=disturbance,
        equal=sum(a == b for a, b in zip(expectation, answers, strict=True)), of=len(bodies),
        seconds_after=round(time.monotonic() - start, 1),
        errors=[answer for answer in answers if "error" in answer][:2],
    )  # fmt: skip


async def exchange_drafts(day: Day, server: Server) -> None:
    """Exchange the draft for one of zeros and back, then let a canary try that in slots."""
    draft = {"path": str(make_blank_draft(DEMO / "eagle3_1", day.out / "blank"))}
    await disturb_streams(
        day, "exchange", server, lambda: server.call("POST", "/admin/draft", draft)
    )
    await disturb_streams(
        day, "exchange", server, lambda: server.call("POST", "/admin/draft/rollback", {})
    )
    trial = draft | {"slot_s": 2, "max_s": 30, "min_blocks": 3, "min_sessions": 4}
    await disturb_streams(
        day, "canary", server, lambda: server.call("POST", "/admin/canary", trial)
    )
    for seed in range(8, 14):
        await run_lap(server, draw_chats(96, seed), 16)
        state = server.call("GET", "/admin/canary")["canary"]
        if state.get("ended"):
            break
    day.record("canary", server=server.name, state=state)
    server.call("DELETE", "/admin/canary")


async def measure_speeds(day: Day, baseline: Server, draft: Server) -> None:
    """Record laps until their time is up. Every round begins with another lane."""
    end = time.monotonic() + day.scale.speeds_s
    lanes: dict[str, tuple[Server, int | None]] = {
        "none": (baseline, None), "K=1": (draft, 1), "K=3": (draft, 3), "K=7": (draft, 7),
        "auto": (draft, None),
    }  # fmt: skip
    for server in (baseline, draft):
        await run_lap(server, draw_chats(32, seed=1), 16)
    await run_lap(draft, draw_noise(32, None), 16)
    names = list(lanes)
    for number in range(3):
        order = names[number % len(names) :] + names[: number % len(names)]
        for traffic in ("friendly", "hostile", "hostile, seeded"):
            for streams in day.scale.streams:
                for name in order:
                    if time.monotonic() > end:
                        return
                    server, depth = lanes[name]
                    await record_lap(day, number, traffic, streams, name, server, depth)


async def record_lap(
    day: Day, number: int, traffic: str, streams: int, lane: str, server: Server, depth: int | None
) -> None:
    bodies = (
        draw_chats(max(6, 2 * streams), seed=10 * streams + 7)
        if traffic == "friendly"
        else draw_noise(max(4, streams), 9 if "seeded" in traffic else None)
    )
    planning = server.call("GET", "/admin/speculation") if lane == "auto" else None
    lap = await run_lap(server, at_depth(bodies, depth), streams)
    steps = count_depths(server, planning) if planning else None
    day.record(
        "speeds", round=number, traffic=traffic, streams=streams, lane=lane, **lap.describe(),
        **({"steps_by_depth": steps} if steps else {}),
    )  # fmt: skip


def count_depths(server: Server, planning: Any) -> list[int]:
    """Return the steps at each depth since ``planning``, an answer of /admin/speculation."""
    answers = (server.call("GET", "/admin/speculation"), planning)
    end_steps, start_steps = (answer["planner"]["steps_by_depth"] for answer in answers)
    return [count - start for count, start in zip(end_steps, start_steps, strict=True)]


async def measure_lengths(day: Day, baseline: Server, draft: Server) -> None:
    """Record first-token times and speeds after long prompts of random tokens."""
    draw = random.Random(9)
    lanes = {"none": (baseline, None), "K=1": (draft, 1), "K=3": (draft, 3), "auto": (draft, None)}
    for length in day.scale.lengths:
        for streams in (1, 4) if length < 10000 else (1,):
            for name, (server, depth) in lanes.items():
                bodies = [
                    {
                        "prompt": draw.choices(range(300, 2000), k=length), "max_tokens": 64,
                        "ignore_eos": True, "temperature": 0,
                    }
                    for _ in range(streams)
                ]  # fmt: skip
                lap = await run_lap(server, at_depth(bodies, depth), streams, "/v1/completions")
                day.record("lengths", prompt=length, streams=streams, lane=name, **lap.describe())


async def compare_front_ends(day: Day, gateway: Server, vllm: Server) -> None:
    """Record server CPU of both, in turns, on the same model with the same draft."""
    for number in range(2):
        for clients in day.scale.clients:
            for server in (gateway, vllm) if number % 2 else (vllm, gateway):
                bodies = [
                    {**chat, "max_tokens": 256, "ignore_eos": True}
                    for chat in draw_chats(2 * clients, seed=clients)
                ]
                lap = await run_lap(server, bodies, clients)
                day.record(
                    "front_end", round=number, clients=clients, server=server.name, **lap.describe()
                )


async def prove(day: Day, name: str, limit_s: float, *arguments: str) -> None:
    """Run ``eaglegate prove`` for at most ``limit_s`` seconds, and record its findings."""
    folder = day.out / name
    command = [
        sys.executable, "-m", GATEWAY, "prove", *arguments, *day.scale.flags,
        f"--out={folder}", f"--time-limit={limit_s:.0f}",
    ]  # fmt: skip
    with (day.out / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(limit_s + 30):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    report = folder / "prove.json"
    checks = json.loads(report.read_text())["checks"] if report.exists() else ()
    findings = [{**check, "numbers": None} for check in checks]
    day.record("prove", subject=name, status=process.returncode, findings=findings)


@contextmanager
def closing_servers(day: Day) -> Iterator[None]:
    try:
        yield
    finally:
        for server in day.servers.values():
            if server.process.poll() is None:
                server.stop()


async def write_large(day: Day, folder: Path) -> None:
    if (folder / "eagle3_1" / "config.json").exists():
        return
    module = "eaglegate.lab.training.large_shape"
    command = [sys.executable, "-m", module, f"--out={folder}", *day.scale.shape]
    with (day.out / "large_shape.log").open("wb") as log:
        await asyncio.to_thread(subprocess.run, command, stdout=log, stderr=log, check=True)


def large_arguments(folder: Path, scale: Scale, drafted: bool) -> list[str]:
    speculation = {
        "method": "eagle3", "model": str(folder / "eagle3_1"), "num_speculative_tokens": MAX_DEPTH,
    }  # fmt: skip
    draft = [f"--speculative-config={json.dumps(speculation)}"] if drafted else []
    parsers = ["--tool-call-parser=hermes", "--reasoning-parser=qwen3"]
    return [str(folder / "target"), "--served-model-name=demo", *parsers, *scale.large, *draft]


async def run_demo(day: Day) -> None:
    """Run the parts of the demo, while the large engines start."""
    async with day.part("start", "demo"):
        demo = await day.wait_ready("demo")
        for name, measure in (("texts", compare_texts), ("exchange", exchange_drafts)):
            if name in day.parts:
                async with day.part(name, "demo"):
                    await measure(day, demo)
        if "kill" in day.parts:
            await run_kill(day, demo)


async def run_variant(day: Day, name: str) -> None:
    """Compare the texts of the demo with another sampler or quantization."""
    flags, environment = VARIANTS[name]
    day.start(name, *day.scale.demo, *flags, environment=environment)
    async with day.part("variants", name):
        await compare_texts(day, await day.wait_ready(name))
    day.servers[name].stop()


async def run_speeds(day: Day) -> None:
    """Measure the large model, while nothing else uses the card."""
    async with day.part("start", "large"):
        baseline, draft = await day.wait_ready("large-plain"), await day.wait_ready("large-draft")
        for name, measure in (("speeds", measure_speeds), ("lengths", measure_lengths)):
            if name in day.parts:
                async with day.part(name, "large"):
                    await measure(day, baseline, draft)


async def run_large(day: Day, folder: Path) -> None:
    """Check the large model: its texts, then a killed engine beside ``eaglegate prove``."""
    baseline, draft = day.servers["large-plain"], day.servers["large-draft"]
    if "texts" in day.parts:
        async with day.part("texts", "large"):
            await compare_texts(day, draft, baseline)
    baseline.stop()  # its memory is needed
    jobs = []
    if "kill" in day.parts:
        jobs.append(run_kill(day, draft))
    if "prove" in day.parts:
        arguments = large_arguments(folder, day.scale, True)
        jobs.append(run_prove(day, "large", day.left_s - 20, *arguments))
    await asyncio.gather(*jobs)


async def run_kill(day: Day, server: Server) -> None:
    async with day.part("kill", server.name):
        await disturb_streams(day, "kill", server, server.kill_engine, 1200)


async def run_front_ends(day: Day) -> None:
    speculation = {
        "method": "eagle3", "model": str(DEMO / "eagle3_1"), "num_speculative_tokens": 3,
    }  # fmt: skip
    day.start(
        "vllm", f"--model={DEMO / 'target'}", "--served-model-name=demo",
        f"--speculative-config={json.dumps(speculation)}", "--max-model-len=4096",
        "--enable-auto-tool-choice", "--tool-call-parser=hermes", "--reasoning-parser=qwen3",
        *day.scale.vllm, module=VLLM,
    )  # fmt: skip
    async with day.part("front_end", "demo"):
        await compare_front_ends(day, await day.wait_ready("demo"), await day.wait_ready("vllm"))


async def run_prove(day: Day, name: str, limit_s: float, *arguments: str) -> None:
    async with day.part("prove", name):
        await prove(day, f"prove-{name}", limit_s, *arguments)


async def run_day(day: Day, folder: Path, is_large: bool) -> None:
    with closing_servers(day):
        day.start("demo", *day.scale.demo)
        checks = []
        if is_large:
            await write_large(day, folder)
            day.start("large-plain", *large_arguments(folder, day.scale, False))
            day.start("large-draft", *large_arguments(folder, day.scale, True))
            await run_speeds(day)
            checks.append(run_large(day, folder))
        checks.append(run_demo(day))
        if "prove" in day.parts:
            checks.append(run_prove(day, "demo", min(200.0, day.left_s), *day.scale.prove))
        if "variants" in day.parts:
            checks += [run_variant(day, name) for name in VARIANTS]
        await asyncio.gather(*checks)
        if "front_end" in day.parts:
            await run_front_ends(day)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=720)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--model", choices=("demo", "both"), default="both")
    parser.add_argument("--large", type=Path, help="folder of the large model, made if missing")
    parser.add_argument("--small", action="store_true", help="try every part on a CPU")
    parser.add_argument("--flag", action="append", default=[], help="flag of every gateway")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    scale = replace(SMALL if options.small else Scale(), flags=tuple(options.flag))
    day = Day(options.out, scale, options.limit_s, options.parts)
    folder = options.large or options.out / "large"
    asyncio.run(run_day(day, folder, options.model == "both"))


if __name__ == "__main__":
    main()
