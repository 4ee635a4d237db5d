"""Time starts, from the command to ready, of gateways and of vLLM's own API server.

    python -m eaglegate.lab.benchmarks.start [--rounds 5] [--other CHECKOUT] [--model FOLDER]
    python -m eaglegate.lab.benchmarks.start --depths 3 auto [--draft FOLDER] [--core 0]
        [--busy 3] [--at-once 3]

The gateways are this one and another checkout, or this one with several settings of ``--depth``.
Each starts on the built-in demo (or MODEL), in turn, with the order reversed every round. The first
round fills the disk's cache, writes bytecode and is dropped. Ready is the first 200 of ``/ready``
or ``/health``. CPU is that of all its processes until then.

``--core`` pins every program to one core, ``--busy`` is the number of endless loops on the same
core, and ``--at-once`` is the number of simultaneous starts of a program, of which the last counts.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from eaglegate.lab.benchmarks.wire import DEMO, ENGINE, free_port
from tests.faults.engine_process import descendants

LIMIT_S = 600.0
MOST = "7"
"""Draft tokens that every engine can make, which ``--depth auto`` needs."""
KV_BYTES = str(256 << 20)
LOOP = (sys.executable, "-c", "while True: pass")
HERE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Program:
    """Command that serves on a given port."""

    name: str
    command: tuple[str, ...]
    path: str = "/ready"
    folder: Path = HERE


@dataclass(frozen=True)
class Start:
    ready_s: float
    cpu_s: float
    log: str


def start_several(program: Program, at_once: int) -> Start:
    """Start several at the same time, and return the last to be ready."""
    with ThreadPoolExecutor(at_once) as pool:
        return max(pool.map(start, [program] * at_once), key=lambda item: item.ready_s)


@contextmanager
def keep_busy(prefix: Sequence[str], loops: int) -> Iterator[None]:
    """Run endless loops until the block ends."""
    processes = [subprocess.Popen([*prefix, *LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in processes:
            loop.kill()
            loop.wait()


def start(program: Program) -> Start:
    port = free_port()
    command = [*program.command, "--host=127.0.0.1", f"--port={port}"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryFile("w+") as log:
        start_time = time.monotonic()
        process = subprocess.Popen(
            command, cwd=program.folder, env=environment, stdout=log, stderr=log
        )
        try:
            while not is_ready(port, program.path):
                if process.poll() is not None or time.monotonic() - start_time > LIMIT_S:
                    log.seek(0)
                    raise SystemExit(f"{program.name} did not start:\n{log.read()[-3000:]}")
                time.sleep(0.02)
            ready_s, cpu_s = time.monotonic() - start_time, count_cpu_s(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        log.seek(0)
        return Start(ready_s, cpu_s, log.read())


def count_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, its living descendants, and those it has waited for."""
    ticks = 0
    for process in (pid, *descendants(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def is_ready(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def list_programs(checkout: Path | None, model: str | None, vllm: bool) -> list[Program]:
    model_arguments = (model,) if model else ()
    serve = (sys.executable, "-m", "eaglegate.server", "serve", *model_arguments)
    programs = [Program("eaglegate", serve)]
    if checkout is not None:
        programs.append(Program(f"eaglegate in {checkout}", serve, folder=checkout))
    if vllm:
        server = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
        target = f"--model={model or DEMO / 'target'}"
        multi = ("env", "VLLM_ENABLE_V1_MULTIPROCESSING=0", "OMP_NUM_THREADS=1", *server)
        programs.append(Program("vllm", (*multi, target, *ENGINE), "/health"))
    return programs


def list_depths(depths: Sequence[str], model: str | None, draft: str | None) -> list[Program]:
    """Return this gateway with each depth, on a named model, as the bare demo plans no depths."""
    draft = draft or str(DEMO / "eagle3_1")
    serve = (sys.executable, "-m", "eaglegate.server", "serve", model or str(DEMO / "target"))
    drafts = ("--spec-model", draft, "--spec-tokens", MOST, "--kv-cache-memory-bytes", KV_BYTES)
    return [Program(f"--depth {depth}", (*serve, *drafts, "--depth", depth)) for depth in depths]


def measure(
    programs: Sequence[Program], rounds: int, verbose: bool, at_once: int = 1
) -> dict[str, list[Start]]:
    starts: dict[str, list[Start]] = {program.name: [] for program in programs}
    for number in range(rounds + 1):
        for program in programs if number % 2 else reversed(programs):
            item = start_several(program, at_once)
            if number:
                starts[program.name].append(item)
            if verbose:
                print(f"{program.name}: {item.ready_s:.2f} s, CPU {item.cpu_s:.1f} s\n{item.log}")
    return starts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--other", type=Path, help="folder of another checkout, started in turn with this one"
    )
    parser.add_argument("--model", help="folder of a model, instead of the demo")
    parser.add_argument("--no-vllm", dest="vllm", action="store_false")
    parser.add_argument("--depths", nargs="*", help="values of --depth to compare for this gateway")
    parser.add_argument("--draft", help="with --depths: folder of a draft, instead of the demo's")
    parser.add_argument("--core", type=int, help="pin every program to this core")
    parser.add_argument("--busy", type=int, default=0, help="number of busy loops on the same core")
    parser.add_argument("--at-once", type=int, default=1, help="number of simultaneous starts")
    parser.add_argument("--verbose", action="store_true", help="show each start's log")
    options = parser.parse_args()
    prefix = () if options.core is None else ("taskset", "-c", str(options.core))
    if options.depths:
        programs = list_depths(options.depths, options.model, options.draft)
    else:
        programs = list_programs(options.other, options.model, options.vllm)
    programs = [replace(item, command=(*prefix, *item.command)) for item in programs]
    with keep_busy(prefix, options.busy):
        results = measure(programs, options.rounds, options.verbose, options.at_once)
    base_starts = results[programs[0].name]
    for name, starts in results.items():
        pairs = list(zip(starts, base_starts, strict=True))
        ratio = statistics.median(
            item_start.ready_s / base_start.ready_s for item_start, base_start in pairs
        )
        delay_s = statistics.median(
            item_start.ready_s - base_start.ready_s for item_start, base_start in pairs
        )
        ready_s = statistics.median(item.ready_s for item in starts)
        cpu = statistics.median(item.cpu_s for item in starts)
        rounds_text = " ".join(f"{item.ready_s:.1f}" for item in starts)
        print(
            f"{name}: ready after {ready_s:.1f} s, x{ratio:.2f}, {delay_s:+.1f} s, CPU {cpu:.1f} s "
            f"(rounds: {rounds_text})",
            flush=True,
        )


if __name__ == "__main__":
    main()
