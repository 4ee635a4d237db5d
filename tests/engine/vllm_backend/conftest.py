"""Real engines, each started once per session; float32, so that near ties cannot flip."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest
import pytest_asyncio
import vllm.platforms.cpu
from vllm import envs
from vllm.platforms.cpu import CpuPlatform

from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
from eaglegate.engine.vllm_backend.child_process import replace_environment
from eaglegate.engine.vllm_backend.engine import VllmEngine
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import render, run_engine, speculation
from tests.forks import fork_engines
from tests.gpu_path.sitecustomize import schedule_asynchronously

FIRST_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "0", "TRITON_INTERPRET": "0"}
SECOND_RUNNER = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
"""``make test-gpu-path``: vLLM's second model runner, whose kernels are interpreted: slow."""
MOST = 3 if SECOND_RUNNER else 7
"""K of the engine most tests share."""
DEPTHS = sorted({0, 1, 3, MOST})
FEW = 2 if SECOND_RUNNER else 6
"""Prompts of the longer tests, of the six there are."""
TOKENS = 24 if SECOND_RUNNER else 60
"""Tokens of their answers."""
SMALL = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_batched_tokens": 64 * (MOST + 1),
    "kv_cache_memory_bytes": 24 << 20,
}
"""Twenty blocks of 128 tokens and prefills in chunks: preemption and chunking happen."""


@contextmanager
def asynchronous_scheduling() -> Iterator[None]:
    """Start engines with asynchronous scheduling, as on GPUs. vLLM switches it off for CPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASYNCHRONOUS_SCHEDULING", "1")  # read by engine processes
        update = CpuPlatform.__dict__["check_and_update_config"]
        patch.setattr(CpuPlatform, "check_and_update_config", update)  # restored at the end
        schedule_asynchronously(vllm.platforms.cpu)
        yield


fork_engines()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def renderer() -> VllmRenderer:
    return VllmRenderer(make_demo_arguments(**SMALL))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prompts(renderer: VllmRenderer) -> list[tuple[int, ...]]:
    return render(renderer)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine() -> AsyncGenerator[VllmEngine, None]:
    """EAGLE 3.1, K = 7."""
    async with run_engine(**SMALL, speculative_config=speculation(MOST)) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plain_engine() -> AsyncGenerator[VllmEngine, None]:
    """The same without a draft. It always has the first model runner: the second must write the
    same, and takes a hundred times as long where its kernels are interpreted.
    """
    async with AsyncExitStack() as stack:
        envs.disable_envs_cache()
        with replace_environment(FIRST_RUNNER):
            engine = run_engine(**SMALL, speculative_config=None)
            started = await stack.enter_async_context(engine)
        envs.disable_envs_cache()
        yield started
