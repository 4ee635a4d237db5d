"""Drafting methods beside EAGLE, on real engines: they serve at every depth, and text is the same.

Each engine writes greedy answers alone and in a mixed batch at depths 0 to K, under the planner and
under random depths. An engine without a draft has written them before. Accounts add up to the
tokens that were delivered.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.drive import Outcome, at, greedy, run_all, running
from engine.speculation.methods import find_method
from engine.speculation.totals import Totals
from engine.vllm_backend.engine import VllmEngine
from tests.engine.vllm_backend.conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TARGET = Path(__file__).parents[3] / "engine" / "demo" / "target"
TOKENS = 40
ROOMY = SMALL | {"kv_cache_memory_bytes": 96 << 20}
"""A draft model as large as the target needs as much KV again."""
Speculation = dict[str, Any]


def ngram(_: Path) -> Speculation:
    return {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


def suffix(_: Path) -> Speculation:
    return {"method": "suffix", "num_speculative_tokens": 6}


def draft_model(_: Path) -> Speculation:
    return {"method": "draft_model", "model": str(TARGET), "num_speculative_tokens": 3}


def parallel_draft_model(folder: Path) -> Speculation:
    """PARD: the target's own weights with a mask token; its drafts beyond the first are noise."""
    draft = folder / "pard"
    shutil.copytree(TARGET, draft)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"pard_token": 5}))
    return {
        "method": "draft_model",
        "model": str(draft),
        "num_speculative_tokens": 7,
        "parallel_drafting": True,
    }


def medusa(folder: Path) -> Speculation:
    """Random heads."""
    draft, heads, hidden, vocab = folder / "medusa", 4, 256, 2048
    draft.mkdir()
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": vocab,
        "medusa_num_heads": heads,
        "medusa_num_layers": 1,
        "torch_dtype": "float32",
    }
    (draft / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    tensors = {f"blocks.{at}.layers.0.weight": torch.randn(hidden, hidden) for at in range(heads)}
    tensors |= {f"blocks.{at}.layers.0.bias": torch.zeros(hidden) for at in range(heads)}
    tensors |= {f"lm_heads.{at}.weight": torch.randn(vocab, hidden) for at in range(heads)}
    save_file(tensors, draft / "model.safetensors")
    return {"method": "medusa", "model": str(draft), "num_speculative_tokens": heads}


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}, which CI does not install")


DRAFTERS = [
    pytest.param(ngram, marks=needs("numba")),
    draft_model,
    parallel_draft_model,
    medusa,
    pytest.param(suffix, marks=needs("arctic_inference")),
]


async def write(
    engine: VllmEngine, prompts: list[tuple[int, ...]], name: str, depth: int | None
) -> list[Outcome]:
    requests = [greedy(f"{name}-{n}", prompt, TOKENS) for n, prompt in enumerate(prompts)]
    return await run_all(engine, [at(depth, request) for request in requests])


def texts(outcomes: list[Outcome]) -> list[tuple[int, ...]]:
    return [outcome.token_ids for outcome in outcomes]


@pytest.mark.parametrize("make", DRAFTERS)
async def test_text_is_the_same_at_every_depth(
    make: Callable[[Path], Speculation],
    tmp_path: Path,
    plain_engine: VllmEngine,
    prompts: list[tuple[int, ...]],
) -> None:
    some = prompts[:6]
    reference = texts(await write(plain_engine, some, "plain", None))
    speculation = make(tmp_path)
    most = int(speculation["num_speculative_tokens"])
    async with running(**ROOMY, speculative_config=speculation) as engine:
        for depth in range(most + 1):
            written = await write(engine, some, f"at-{depth}", depth)
            assert texts(written) == reference, f"at depth {depth}"
            deepest = max(len(outcome.totals.proposed_at) for outcome in written)
            assert deepest <= depth
        mixed = [at(n % (most + 1), greedy(f"mixed-{n}", p, TOKENS)) for n, p in enumerate(some)]
        assert texts(await run_all(engine, mixed)) == reference
        for mode in ("auto", "random"):
            assert await engine.set_planning(mode) == mode
            written = await write(engine, some, mode, None)
            assert texts(written) == reference, mode
        totals = sum((outcome.totals for outcome in written), Totals())
        assert totals.imbalance == 0
        if find_method(speculation).lookup or make is draft_model:
            assert totals.accepted > 0


async def test_requests_that_leave_early(tmp_path: Path, prompts: list[tuple[int, ...]]) -> None:
    """One that is cancelled between two drafts does not hurt the others of its batch."""
    async with running(**ROOMY, speculative_config=parallel_draft_model(tmp_path)) as engine:
        stay = asyncio.create_task(write(engine, prompts[:3], "stay", 7))
        leaving = [
            asyncio.create_task(write(engine, [prompt], f"leave-{n}", n % 8))
            for n, prompt in enumerate(prompts[:4])
        ]
        await asyncio.sleep(0.05)
        for task in leaving:
            task.cancel()
        alone = await write(engine, prompts[:3], "alone", 0)
        assert texts(await stay) == texts(alone)
