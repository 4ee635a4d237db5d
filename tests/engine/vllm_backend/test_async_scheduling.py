"""Asynchronous scheduling, the default on GPUs, forced on the CPU: the same text, depths and
accounts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.engine.vllm_backend.engine import VllmEngine
from tests.engine.drive import fix_depth, make_greedy, run_all
from tests.engine.vllm_backend.conftest import FEW, MOST, SECOND_RUNNER, SMALL, TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).parent.parent.parent.parent
DEPTHS = (0, 2, None) if SECOND_RUNNER else (0, 1, 3, MOST, None)
SCRIPT = """
import asyncio, json, sys
from tests.engine.drive import fix_depth, make_greedy, run_all, run_engine, speculation
async def main():
    prompts, depths, tokens, small, most = json.load(sys.stdin)
    async with run_engine(**small, speculative_config=speculation(most)) as engine:
        assert engine._llm.vllm_config.scheduler_config.async_scheduling
        requests = [
            fix_depth(depth, make_greedy(f"a-{number}", prompt, tokens))
            for number, prompt in enumerate(prompts) for depth in depths
        ]
        outcomes = await run_all(engine, requests)
        for mode in ("random", "auto"):
            assert await engine.set_planning(mode) == mode
            free = [make_greedy(f"{mode}-{n}", prompt, tokens) for n, prompt in enumerate(prompts)]
            outcomes += await run_all(engine, free)
    print("RESULT", json.dumps([
        [outcome.token_ids, outcome.totals.imbalance, len(outcome.totals.proposed_at),
         outcome.totals.accepted] for outcome in outcomes
    ]))
if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.gpu_path
async def test_asynchronous_scheduling_gives_the_same(
    plain_engine: VllmEngine, prompts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    prompts = prompts[:FEW]
    requests = [
        fix_depth(depth, make_greedy(f"a-{number}", prompt, TOKENS))
        for number, prompt in enumerate(prompts)
        for depth in DEPTHS
    ]
    synchronous = await run_all(plain_engine, requests)
    script = tmp_path / "asynchronous.py"
    script.write_text(SCRIPT)
    given = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([str(ROOT / "tests" / "gpu_path"), str(ROOT), given])
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, script],
        input=json.dumps([prompts, DEPTHS, TOKENS, SMALL, MOST]),
        env=os.environ | {"PYTHONPATH": path, "ASYNCHRONOUS_SCHEDULING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    rows = json.loads(line.removeprefix("RESULT "))
    planned = rows[len(requests) :]
    for row, want in zip(planned, synchronous[:: len(DEPTHS)] * 2, strict=True):
        assert tuple(row[0]) == want.token_ids, "at planned depths"
        assert row[1] == 0
    assert sum(row[3] for row in planned) > 0
    for row, want, request in zip(rows[: len(requests)], synchronous, requests, strict=True):
        token_ids, imbalance, deepest, accepted = row
        assert tuple(token_ids) == want.token_ids, request.id
        assert imbalance == 0, request.id
        assert deepest == (MOST if request.depth is None else request.depth), request.id
        assert bool(accepted) == bool(deepest), request.id
