"""Poisons that a test puts into the draft of a served gateway's engine; see test_doctor_served.py.

The test writes a command into the file that ``POISON_FILE`` names. The scheduler, which shares the
engine process with the worker, obeys it before its next step. Only the draft is ever touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend import draft_reload
from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase
from eaglegate.engine.vllm_backend.worker import DepthWorker
from eaglegate.engine.wrapping import wrap

POISON_FILE = "POISON_FILE"
RUNNERS: list[Any] = []
"""The model runner of this process, from its first step on."""


class PoisonedWorker(DepthWorker):
    """Importing it is what matters."""


def list_cached_blocks(scheduler: Any) -> list[int]:
    blocks = scheduler.kv_cache_manager.block_pool.blocks
    return sorted(block.block_id for block in blocks if block.block_hash)


def list_draft_caches(runner: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each draft layer by block, as vLLM's attention on CPUs reads them."""
    layers = runner.vllm_config.compilation_config.static_forward_context
    if isinstance(runner, SecondRunner):
        names = runner.speculator.draft_attn_layer_names
    else:
        names = runner.drafter._draft_attn_layer_names
    for name in sorted(names):
        cache = layers[name].kv_cache
        blocks, heads, tokens, width = cache.shape
        keys, values = cache.view(blocks, heads, 2 * tokens, width // 2).chunk(2, dim=2)
        yield keys, values


def write_noise(scheduler: Any, runner: Any, scale: float) -> int:
    """Keys and values of another draft in all cached blocks."""
    draws = torch.Generator().manual_seed(5)
    blocks = list_cached_blocks(scheduler)
    for cache in list_draft_caches(runner):
        for part in cache:
            for block in blocks:
                spread = part[block].std() * scale
                part[block] = torch.randn(part[block].shape, generator=draws) * spread
    return len(blocks)


def load_weights(_: Any, runner: Any, folder: str, running: str) -> int:
    """Load other weights into the draft; the gateway does not know."""
    weights = draft_reload.read_draft(runner, Path(folder), Path(running))
    with set_current_vllm_config(runner.vllm_config), torch.device(runner.device):
        draft_reload.reload_draft(runner, weights)
    return len(weights)


POISONS: dict[str, Callable[..., int]] = {
    "write_noise": write_noise,
    "load_weights": load_weights,
}


def execute_model(
    original: Callable[..., Any], runner: Any, step: SchedulerOutput, *args: Any, **kwargs: Any
) -> Any:
    if not RUNNERS:
        RUNNERS.append(runner)
    return original(runner, step, *args, **kwargs)


def schedule(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    command = Path(os.environ.get(POISON_FILE, ""))  # unset in tests that share this process
    if RUNNERS and command.is_file():
        name, given = json.loads(command.read_text())
        try:
            done: Any = POISONS[name](scheduler, RUNNERS[0], **given)
        except Exception as error:
            done = repr(error)
        command.with_suffix(".done").write_text(json.dumps(done))
        command.unlink()
    return original(scheduler, *args, **kwargs)


for one in GPUModelRunner, SecondRunner:
    wrap(one, "execute_model", execute_model)
wrap(DepthSchedulerBase, "schedule", schedule)
