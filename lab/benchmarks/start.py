"""Time the start, from the command to ready: this gateway, another checkout of it, and vLLM's own
API server.

    python -m eaglegate.lab.benchmarks.start [--rounds 5] [--other CHECKOUT] [--model FOLDER]

Each starts on the built-in demo (or MODEL), in turn, the order reversed every round; the first
round fills the disk's cache, writes bytecode and is dropped. Ready is the first 200 of ``/ready``
or ``/health``. CPU is that of all its processes until it is ready.
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eaglegate.lab.benchmarks.wire import DEMO, ENGINE, free_port
from tests.faults.engine_process import descendants

LIMIT_S = 300.0
HERE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Program:
    """A command that serves on the port it is given."""

    name: str
    command: tuple[str, ...]
    path: str = "/ready"
    folder: Path = HERE


@dataclass(frozen=True)
class Start:
    ready_s: float
    cpu_s: float
    log: str


def start(program: Program) -> Start:
    port = free_port()
    command = [*program.command, "--host=127.0.0.1", f"--port={port}"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryFile("w+") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=program.folder, env=environment, stdout=log, stderr=log
        )
        try:
            while not is_ready(port, program.path):
                if process.poll() is not None or time.monotonic() - began > LIMIT_S:
                    log.seek(0)
                    raise SystemExit(f"{program.name} did not start:\n{log.read()[-3000:]}")
                time.sleep(0.02)
            ready, spent = time.monotonic() - began, count_cpu_s(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        log.seek(0)
        return Start(ready, spent, log.read())


def count_cpu_s(pid: int) -> float:
    """Count CPU seconds of a process, of its living descendants, and of those it has waited for."""
    ticks = 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
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


def list_programs(other: Path | None, model: str | None, vllm: bool) -> list[Program]:
    served = (model,) if model else ()
    serve = (sys.executable, "-m", "eaglegate.server", "serve", *served)
    programs = [Program("eaglegate", serve)]
    if other is not None:
        programs.append(Program(f"eaglegate in {other}", serve, folder=other))
    if vllm:
        server = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
        target = f"--model={model or DEMO / 'target'}"
        multi = ("env", "VLLM_ENABLE_V1_MULTIPROCESSING=0", "OMP_NUM_THREADS=1", *server)
        programs.append(Program("vllm", (*multi, target, *ENGINE), "/health"))
    return programs


def measure(programs: Sequence[Program], rounds: int, verbose: bool) -> dict[str, list[Start]]:
    found: dict[str, list[Start]] = {program.name: [] for program in programs}
    for number in range(rounds + 1):
        for program in programs if number % 2 else reversed(programs):
            one = start(program)
            if number:
                found[program.name].append(one)
            if verbose:
                print(f"{program.name}: {one.ready_s:.2f} s, CPU {one.cpu_s:.1f} s\n{one.log}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another checkout, started in turn")
    parser.add_argument("--model", help="a model's folder in place of the demo")
    parser.add_argument("--no-vllm", dest="vllm", action="store_false")
    parser.add_argument("--verbose", action="store_true", help="show each start's log")
    options = parser.parse_args()
    programs = list_programs(options.other, options.model, options.vllm)
    found = measure(programs, options.rounds, options.verbose)
    first = found[programs[0].name]
    for name, starts in found.items():
        pairs = zip(starts, first, strict=True)
        ratio = statistics.median(mine.ready_s / ours.ready_s for mine, ours in pairs)
        ready = statistics.median(one.ready_s for one in starts)
        cpu = statistics.median(one.cpu_s for one in starts)
        each = " ".join(f"{one.ready_s:.1f}" for one in starts)
        print(f"{name}: ready after {ready:.1f} s, x{ratio:.2f}, CPU {cpu:.1f} s (rounds: {each})")


if __name__ == "__main__":
    main()
