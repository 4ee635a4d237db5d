"""Poisons that a test puts into the draft of a served gateway's engine; see test_doctor_served.py.

The test writes a command into the file that ``POISON_FILE`` names. The scheduler, which shares the
engine process with the worker, obeys it before its next step. Only the draft is ever touched.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend import draft_reload
from eaglegate.engine.vllm_backend.scheduler import DepthSchedulerBase
from eaglegate.engine.vllm_backend.worker import DepthWorker
from tests.engine.vllm_backend.wrapping import wrap

POISON_FILE = "POISON_FILE"
RUNNERS: list[Any] = []
"""The model runner of this process, from its first step on."""


class PoisonedWorker(DepthWorker):
    """Importing it is what matters."""


class OffsetRotary(nn.Module):
    """A rotary embedding whose positions are off."""

    def __init__(self, inner: nn.Module, offset: int) -> None:
        super().__init__()
        self.inner, self.offset = inner, offset

    def forward(self, positions: torch.Tensor, *given: Any) -> Any:
        return self.inner(positions + self.offset, *given)


def find_hot_blocks(scheduler: Any, everywhere: bool = False) -> list[int]:
    """The cached blocks of the prefix that most blocks go back to; ``everywhere``: of all."""
    cached = {b.block_id for b in scheduler.kv_cache_manager.block_pool.blocks if b.block_hash}
    if everywhere:
        return sorted(cached)
    roots = scheduler.prefixes._roots
    (hot, _), *_ = Counter(roots[block] for block in cached if block in roots).most_common(1)
    return sorted(block for block in cached if roots.get(block) == hot)


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


def write_noise(scheduler: Any, runner: Any, scale: float, everywhere: bool = False) -> int:
    """Keys and values of another draft under the hot prefix, or under all."""
    draws = torch.Generator().manual_seed(5)
    blocks = find_hot_blocks(scheduler, everywhere)
    for cache in list_draft_caches(runner):
        for part in cache:
            for block in blocks:
                spread = part[block].std() * scale
                part[block] = torch.randn(part[block].shape, generator=draws) * spread
    return len(blocks)


def write_holes(scheduler: Any, runner: Any) -> int:
    """The hot prefix as a draft leaves it that never ran over it: in fresh blocks of zeros."""
    blocks = find_hot_blocks(scheduler)
    for cache in list_draft_caches(runner):
        for part in cache:
            part[blocks] = 0.0
    return len(blocks)


def offset_rotary(scheduler: Any, runner: Any, offset: int) -> int:
    """Write the hot prefix anew with positions that are off; 0 ends it."""
    blocks = find_hot_blocks(scheduler) if offset else []
    scheduler.kv_cache_manager.block_pool.evict_blocks(set(blocks))
    for layer in runner.get_draft_model().model.layers:
        attention = layer.self_attn
        if isinstance(attention.rotary_emb, OffsetRotary):
            attention.rotary_emb = attention.rotary_emb.inner
        if offset:
            attention.rotary_emb = OffsetRotary(attention.rotary_emb, offset)
    return len(blocks)


def load_weights(_: Any, runner: Any, folder: str, running: str) -> int:
    """Load other weights into the draft; the gateway does not know."""
    weights = draft_reload.read_draft(runner, Path(folder), Path(running))
    with set_current_vllm_config(runner.vllm_config), torch.device(runner.device):
        draft_reload.reload_draft(runner, weights)
    return len(weights)


def bend_draft(_: Any, runner: Any) -> int:
    """Negate what the draft's last layer returns: a fault of neither blocks nor weights."""
    layer = runner.get_draft_model().model.layers[-1]
    layer.register_forward_hook(lambda _, __, given: (-given[0], *given[1:]))
    return 1


POISONS: dict[str, Callable[..., int]] = {
    one.__name__: one for one in (write_noise, write_holes, offset_rotary, load_weights, bend_draft)
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
