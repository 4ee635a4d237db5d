"""A day on a GPU in minutes: speculation seen with vLLM's defaults, on one card.

    python -m eaglegate.lab.benchmarks.gpu_day OUT [--limit-s 600] [--parts hostile contexts ...]

Needs nothing but one GPU with 80 GB of memory; ``--small`` tries every part on a CPU instead. Two
models are served: the built-in demo, and the same model in the shape of an 8B Llama
(``lab/training/large_shape.py``), with K = 7 and without a draft, beside each other. While one
engine is measured, the other ones are idle.

The parts, in their order. The first two have the card to themselves. The others compare texts, CPU
or two lanes in turns, and run beside each other:

=========  =========================================================================================
hostile    tokens per second in phases of 15 s of random words, at 16 to 256 streams
contexts   tokens per second after prompts of 30,000 tokens, with answers of 500
prove      ``eaglegate prove`` on the large model
front_end  CPU and latency of the gateway beside vLLM's server, at 64 and 256 streams
pod        vLLM's server with eaglegate's scheduler and without it: speeds, and equal texts
lookups    lookups on and off: repeated text alone, beside streams that do not repeat, and these
variants   the texts of the demo at several depths in FP8, with FlashInfer's sampler, on vLLM 0.33
=========  =========================================================================================

Each start is recorded with its seconds, their parts, and its GPU memory.
Every result is a line of ``OUT/results.jsonl``, written when it is known. A part that fails is
recorded with its error, and the next one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eaglegate.lab.benchmarks.gpu_servers import (
    CHAT,
    COMPLETIONS,
    GATEWAY,
    VLLM,
    Server,
    complete,
    list_descendants,
    list_gpu_memory,
    run_lap,
)

DEMO = Path(__file__).parents[2] / "engine" / "demo"
QUESTIONS = Path(__file__).parents[1] / "measure" / "data" / "chat.jsonl"
PARTS = ("hostile", "contexts", "prove", "front_end", "pod", "lookups", "variants")
VARIANTS: Mapping[str, tuple[Sequence[str], str]] = {
    "fp8": (("--quantization=fp8",), ""),
    "flashinfer": ((), "FLASHINFER_PATH"),
    "vllm-0.33": ((), "VLLM_033_PATH"),
}
"""Flags of further engines of the demo, and the variable that names a folder of packages which the
other engines shall not find. A variant without its folder is left out."""
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
Body = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Size of everything that is measured."""

    streams: tuple[int, ...] = (16, 64, 128, 256)
    phase_s: float = 15.0
    prompts: int = 48
    contexts: tuple[int, ...] = (30_000,)
    context_answer: int = 500
    clients: tuple[int, ...] = (64, 256)
    copies: int = 16
    """Streams of repeated text."""
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
    lookup: tuple[str, ...] = (f"--lookup={MAX_DEPTH}",)
    flags: tuple[str, ...] = ()


SMALL = Scale(
    streams=(2, 4),
    phase_s=5.0,
    prompts=6,
    contexts=(1000,),
    context_answer=40,
    clients=(4, 16),
    copies=4,
    answers=32,
    shape=(
        "--hidden-size=512", "--intermediate-size=1024", "--num-hidden-layers=8",
        "--num-attention-heads=8", "--num-key-value-heads=4", "--device=cpu",
    ),
    large=("--max-model-len=4096", f"--kv-cache-memory-bytes={256 << 20}"),
    vllm=(f"--kv-cache-memory-bytes={256 << 20}", "--enforce-eager"),
    prove=("--quick",),
    lookup=(f"--lookup={MAX_DEPTH}", "--no-async-scheduling"),
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


def draw_noise(count: int) -> list[Body]:
    """Return hostile chats: random words at temperature 1.6, which no draft predicts."""
    draw = random.Random(3)
    sampling = {"temperature": 1.6, "max_tokens": 100, "min_tokens": 60}
    questions = (" ".join(draw.choices(WORDS, k=20)) for _ in range(count))
    return [{"messages": [{"role": "user", "content": text}], **sampling} for text in questions]


def draw_prompts(count: int, length: int, repeats: int = 1, **sampling: Any) -> list[Body]:
    """Return prompts of ``length`` random tokens ``repeats`` times over. Answers go on."""
    draw = random.Random(length)
    units = (draw.choices(range(300, 900), k=length) for _ in range(count))
    return [{"prompt": unit * repeats, "ignore_eos": True, **sampling} for unit in units]


def at_depth(bodies: Sequence[Body], depth: int | None) -> list[Body]:
    """Return the bodies with a depth of their own; None leaves it to the gateway."""
    return [body if depth is None else {**body, "num_speculative_tokens": depth} for body in bodies]


async def compare_texts(day: Day, server: Server) -> None:
    """Compare answers at depths 1, 3 and by default with those at depth 0."""
    chats = draw_chats(day.scale.prompts)
    for kind, sampling in SAMPLING.items():
        bodies = [{**chat, **sampling, "max_tokens": day.scale.answers} for chat in chats]
        expectation = await complete(server, at_depth(bodies, 0), 16)
        for depth in (1, 3, None):
            answers = await complete(server, at_depth(bodies, depth), 16)
            record_texts(day, server, f"{kind}, depth {depth}", expectation, answers)


def record_texts(
    day: Day, server: Server, kind: str, expectation: Sequence[Body], answers: Sequence[Body]
) -> None:
    pairs = [*zip(expectation, answers, strict=True)]
    differences = [pair for pair in pairs if pair[0] != pair[1]]
    day.record(
        "texts", server=server.name, kind=kind, equal=len(pairs) - len(differences), of=len(pairs),
        differing=differences[:2], errors=[one for one in answers if "error" in one][:2],
    )  # fmt: skip


async def measure_hostile(day: Day, baseline: Server, draft: Server) -> None:
    """Record phases in which nothing is worth drafting, after friendly laps."""
    lanes = {"none": (baseline, None), "K=1": (draft, 1), "auto": (draft, None)}
    for streams in day.scale.streams:
        await run_lap(draft, draw_chats(streams, seed=1), streams)
        for lane, (server, depth) in lanes.items():
            bodies, limit_s = draw_noise(100 * streams), day.scale.phase_s
            await record_lap(
                day, "hostile", lane, server, at_depth(bodies, depth), streams, limit_s
            )


async def measure_contexts(day: Day, baseline: Server, draft: Server) -> None:
    """Record first-token times and speeds after long prompts of random tokens."""
    lanes = {"none": (baseline, None), "K=1": (draft, 1), "K=3": (draft, 3), "auto": (draft, None)}
    for length in day.scale.contexts:
        for streams in (1, 2):
            for lane, (server, depth) in lanes.items():
                bodies = draw_prompts(
                    streams, length, temperature=0, max_tokens=day.scale.context_answer
                )
                await record_lap(day, "contexts", lane, server, at_depth(bodies, depth), streams)


async def record_lap(
    day: Day, part: str, lane: str, server: Server, bodies: Sequence[Body], streams: int,
    limit_s: float = math.inf, **about: Any,
) -> None:  # fmt: skip
    """Record a lap, and the steps at each depth if the gateway chooses it."""
    planning = server.call("GET", "/admin/speculation") if lane == "auto" else None
    path = COMPLETIONS if "prompt" in bodies[0] else CHAT
    lap = await run_lap(server, bodies, streams, path, limit_s)
    steps = {"steps_by_depth": count_depths(server, planning)} if planning else {}
    day.record(part, lane=lane, streams=streams, **about, **lap.describe(), **steps)


def count_depths(server: Server, planning: Any) -> list[int]:
    """Return the steps at each depth since ``planning``, an answer of /admin/speculation."""
    answers = (server.call("GET", "/admin/speculation"), planning)
    end_steps, start_steps = (answer["planner"]["steps_by_depth"] for answer in answers)
    return [count - start for count, start in zip(end_steps, start_steps, strict=True)]


async def measure_lookups(day: Day, server: Server) -> None:
    """Record laps with lookups and without them, in turns."""
    count = day.scale.copies
    copies = draw_prompts(2 * count, 24, 8, temperature=0, max_tokens=160)
    others = draw_prompts(2 * count, 64, temperature=1.6, max_tokens=160)
    both = [body for pair in zip(copies, others, strict=True) for body in pair]
    kinds = {"copies": copies, "others": others, "both": both}
    for number in range(3):
        for kind, bodies in kinds.items():
            for lane, rules in (("off", {"lookup": 0}), ("on", {})):
                server.call("PUT", "/admin/speculation", rules)
                await record_lap(
                    day, "lookups", lane, server, bodies, count, round=number, kind=kind
                )


async def compare_pods(day: Day, pod: Server, vllm: Server) -> None:
    """Record laps of vLLM's server with our scheduler and without it, in turns, and compare
    greedy texts."""
    bodies = [{**chat, "max_tokens": day.scale.answers} for chat in draw_chats(day.scale.prompts)]
    expectation, answers = await complete(vllm, bodies, 16), await complete(pod, bodies, 16)
    record_texts(day, pod, "greedy, against vLLM's own scheduler", expectation, answers)
    streams = day.scale.clients[0]
    kinds = {"friendly": draw_chats(2 * streams), "hostile": draw_noise(2 * streams)}
    for number in range(3):
        for kind, chats in kinds.items():
            for server in (pod, vllm):
                await record_lap(
                    day, "pod", server.name, server, chats, streams, round=number, kind=kind
                )


async def compare_front_ends(day: Day, gateway: Server, vllm: Server) -> None:
    """Record server CPU of both, in turns, on the same model with the same draft."""
    for number in range(2):
        for clients in day.scale.clients:
            for server in (gateway, vllm) if number % 2 else (vllm, gateway):
                bodies = [
                    {**chat, "max_tokens": 256, "ignore_eos": True}
                    for chat in draw_chats(2 * clients, seed=clients)
                ]
                await record_lap(
                    day, "front_end", server.name, server, bodies, clients, round=number
                )


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


async def run_variant(day: Day, name: str) -> None:
    """Compare the texts of the demo with another sampler, quantization or version of vLLM."""
    flags, variable = VARIANTS[name]
    environment = {}
    if variable:
        paths = (os.environ.get(variable, ""), os.environ.get("PYTHONPATH", ""))
        if not paths[0]:
            day.record("variants", subject=name, failure=f"{variable} names no folder")
            return
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if name == "flashinfer":
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "1"
    day.start(name, *day.scale.demo, *flags, environment=environment)
    async with day.part("variants", name):
        await compare_texts(day, await day.wait_ready(name))
    day.servers[name].stop()


async def run_speeds(day: Day, folder: Path) -> None:
    """Measure the large model, while nothing else uses the card."""
    day.start("large-plain", *large_arguments(folder, day.scale, False))
    day.start("large-draft", *large_arguments(folder, day.scale, True))
    async with day.part("start", "large"):
        baseline, draft = await day.wait_ready("large-plain"), await day.wait_ready("large-draft")
        for name, measure in (("hostile", measure_hostile), ("contexts", measure_contexts)):
            if name in day.parts:
                async with day.part(name, "large"):
                    await measure(day, baseline, draft)
    for name in ("large-plain", "large-draft"):
        day.servers[name].stop()  # its memory is needed


async def run_lookups(day: Day, folder: Path) -> None:
    day.start("lookups", *large_arguments(folder, day.scale, True), *day.scale.lookup)
    async with day.part("lookups", "large"):
        await measure_lookups(day, await day.wait_ready("lookups"))
    day.servers["lookups"].stop()


async def run_servers(day: Day) -> None:
    """Measure vLLM's server beside the gateway, and beside itself with our scheduler."""
    speculation = {
        "method": "eagle3", "model": str(DEMO / "eagle3_1"), "num_speculative_tokens": 3,
    }  # fmt: skip
    arguments = (
        f"--model={DEMO / 'target'}", "--served-model-name=demo",
        f"--speculative-config={json.dumps(speculation)}", "--max-model-len=4096",
        "--enable-auto-tool-choice", "--tool-call-parser=hermes", "--reasoning-parser=qwen3",
        *day.scale.vllm,
    )  # fmt: skip
    day.start("vllm", *arguments, module=VLLM)
    if "front_end" in day.parts:
        day.start("demo", *day.scale.demo)
    if "pod" in day.parts:
        day.start("pod", *arguments, "--scheduler-cls=eaglegate.vllm.Scheduler", module=VLLM)
    for name, other, compare in (
        ("front_end", "demo", compare_front_ends),
        ("pod", "pod", compare_pods),
    ):
        if name in day.parts:
            async with day.part(name, other):
                await compare(day, await day.wait_ready(other), await day.wait_ready("vllm"))


async def run_prove(day: Day, folder: Path) -> None:
    """Run ``eaglegate prove`` on the large model for the time that is left, and record its
    findings."""
    limit_s, out = day.left_s - 20, day.out / "prove-large"
    command = [
        sys.executable, "-m", GATEWAY, "prove", *large_arguments(folder, day.scale, True),
        *day.scale.prove, *day.scale.flags, f"--out={out}", f"--time-limit={limit_s:.0f}",
    ]  # fmt: skip
    async with day.part("prove", "large"):
        with (day.out / "prove-large.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            try:
                async with asyncio.timeout(limit_s + 30):
                    await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        report = out / "prove.json"
        checks = json.loads(report.read_text())["checks"] if report.exists() else ()
        findings = [{**check, "numbers": None} for check in checks]
        day.record("prove", subject=out.name, status=process.returncode, findings=findings)


async def run_day(day: Day, folder: Path) -> None:
    parts = {*day.parts}
    with closing_servers(day):
        if parts & {"hostile", "contexts", "prove", "lookups"}:
            await write_large(day, folder)
        if parts & {"hostile", "contexts"}:
            await run_speeds(day, folder)
        jobs = []
        if "prove" in parts:
            jobs.append(run_prove(day, folder))
        if parts & {"front_end", "pod"}:
            jobs.append(run_servers(day))
        if "lookups" in parts:
            jobs.append(run_lookups(day, folder))
        if "variants" in parts:
            jobs += [run_variant(day, name) for name in VARIANTS]
        await asyncio.gather(*jobs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=600)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--large", type=Path, help="folder of the large model, made if missing")
    parser.add_argument("--small", action="store_true", help="try every part on a CPU")
    parser.add_argument("--flag", action="append", default=[], help="flag of every gateway")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    scale = replace(SMALL if options.small else Scale(), flags=tuple(options.flag))
    day = Day(options.out, scale, options.limit_s, options.parts)
    folder = options.large or options.out / "large"
    asyncio.run(run_day(day, folder))


if __name__ == "__main__":
    main()
