"""Real engines, each started once per session; float32, so that near ties cannot flip."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest_asyncio

from benchmarks.drive import render, running, speculation
from engine.vllm_backend.arguments import make_demo_arguments
from engine.vllm_backend.engine import VllmEngine
from engine.vllm_backend.renderer import VllmRenderer

SECOND_RUNNER = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
"""``make test-gpu-path``: vLLM's second model runner, whose kernels are interpreted: slow."""
MOST = 3 if SECOND_RUNNER else 7
"""K of the engine most tests share."""
DEPTHS = sorted({0, 1, 3, MOST})
SMALL = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_batched_tokens": 64 * (MOST + 1),
    "kv_cache_memory_bytes": 24 << 20,
}
"""Twenty blocks of 128 tokens and prefills in chunks: preemption and chunking happen."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def renderer() -> VllmRenderer:
    return VllmRenderer(make_demo_arguments(**SMALL))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prompts(renderer: VllmRenderer) -> list[tuple[int, ...]]:
    return render(renderer)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine() -> AsyncGenerator[VllmEngine, None]:
    """EAGLE 3.1, K = 7."""
    async with running(**SMALL, speculative_config=speculation(MOST)) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plain_engine() -> AsyncGenerator[VllmEngine, None]:
    """The same without a draft."""
    async with running(**SMALL, speculative_config=None) as started:
        yield started
