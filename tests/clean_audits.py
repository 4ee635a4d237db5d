"""Audit many sound answers of two real workers, of vLLM 0.32 and 0.33: none may give an alarm.

    python -m tests.clean_audits 1000 [--dtype bfloat16] [--runner 2]

Prints what was audited, what the sequential tests saw, and what the auditor took per answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.audited_workers import KINDS, AuditedFleet, audited_fleet
from tests.conftest import ROOT
from tests.workers import MODEL, OURS, vllm_worker

IN_FLIGHT = 12
REPORT_S = 60.0


async def audit(fleet: AuditedFleet, answers: int) -> None:
    """Ask for so many answers and audit them all."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def answer(number: int) -> None:
        async with room:
            await fleet.answer(KINDS[number % len(KINDS)])
            while fleet.number - fleet.settled > 2 * IN_FLIGHT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    await asyncio.gather(*map(answer, range(answers)))
    await fleet.settle(answers, 600)


def describe(fleet: AuditedFleet, took_s: float) -> str:
    records, workers = fleet.records, fleet.panel.describe()
    spent_s = sum(record.took_s for record in records)
    tokens = sum(record.tokens for record in records)
    outcomes = Counter((record.choosing.value, record.outcome.value) for record in records)
    return "\n".join((
        f"{len(records)} audits of {tokens} tokens in {took_s:.0f} s: "
        f"{spent_s / max(1, len(records)):.3f} s each; dropped: {dict(Counter(fleet.drops))}",
        *(f"{choosing} {outcome}: {count}" for (choosing, outcome), count in outcomes.items()),
        *(f"{row['name']} {row['version']}: {row['near_tie_nats']} nats" for row in workers),
        *(f"{name}: {row}" for name, row in fleet.auditor.describe()["evidence"].items()),
    ))  # fmt: skip


async def run(urls: Sequence[str], answers: int) -> None:
    """Print a report each minute, so that a run may be ended at any time."""
    async with audited_fleet(MODEL, urls) as fleet:
        start = time.monotonic()
        work = asyncio.create_task(audit(fleet, answers))
        while not work.done():
            await asyncio.wait([work], timeout=REPORT_S)
            print(describe(fleet, time.monotonic() - start), flush=True)
        work.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=int)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runner", default="1", choices=("1", "2"))
    options = parser.parse_args()
    second = options.runner == "2"
    number = "1" if second else "0"
    runner = {"VLLM_USE_V2_MODEL_RUNNER": number, "TRITON_INTERPRET": number}
    kernels = [str(ROOT / "tests" / "gpu_path"), str(ROOT / ".gpu-path")] if second else []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = [
            stack.enter_context(
                vllm_worker(
                    folder / f"{len(overlay)}.log",
                    (*OURS, f"--dtype={options.dtype}"),
                    PYTHONPATH=os.pathsep.join(
                        [*kernels[:1], str(ROOT / "src"), *kernels[1:], *overlay]
                    ),
                    **runner,
                )
            )
            for overlay in ([], [str(ROOT / ".vllm-0.33")])
        ]
        for worker in workers:
            worker.until_healthy()
        asyncio.run(run([worker.url for worker in workers], options.answers))


if __name__ == "__main__":
    main()
