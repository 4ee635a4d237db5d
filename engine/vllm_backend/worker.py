"""Patches of vLLM's first model runner, loaded in every worker (``worker_extension_cls``).

Where Triton works, vLLM uses its second model runner: ``second_runner.py``.

* Steps that want no draft run no draft pass. At depth 0 vLLM still runs the draft model once per
  step to keep its KV cache complete; the scheduler marks the steps in which that may be left out.
  With synchronous scheduling such a step also prepares nothing for the draft, and a step that
  verifies nothing uses the plain sampler.
* On a CPU, sampling with drafts follows temperature, top-p and top-k. vLLM's native kernel that
  spreads a request's values over its draft tokens writes to a copy, so the sampler used
  uninitialised memory. Acceptance fell to a twentieth, and text came from another distribution. A
  request with top-k also no longer kills the engine in a step without drafts, such as its prefill.
* A request with a seed gets the same text at every depth, in both runners (``seeded_rows.py``).
* With LoRA adapters, a draft that shares the target's embedding gets it without adapters. vLLM
  shares the adapters' wrapper, which counts the target's tokens; on a CPU the engine died.
* On a CPU, adapters do not affect requests without one. vLLM gives their tokens the index -1, which
  its CPU kernels take for the last adapter, so requests of the model itself got its text.
* Each row of a prompt's logits gets the adapter of its own token (``prompt_rows.py``).
* After an image, whose tokens share rotary positions, the draft writes the KV of its later tokens
  into the slots of those tokens. vLLM takes a rotary position for the slot (its issue 54498), so
  that they overwrote the draft's KV of the prompt, also in blocks that requests share.
* ``min_p``, ``logit_bias``, ``min_tokens`` and ``thinking_token_budget`` affect every row of a step
  as they affect a single request without a draft (``steering.py``).

Plug-ins add patches of their own (``plugin_table.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.sample import rejection_sampler
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from eaglegate.engine.vllm_backend.child_process import exit_with_parent
from eaglegate.engine.vllm_backend.draft_reload import DraftReloader
from eaglegate.engine.vllm_backend.execution import STAGES, ExecutionReporter, time_stage
from eaglegate.engine.vllm_backend.plugin_table import load_plugins
from eaglegate.engine.vllm_contract import LEFT_OUT, SKIP
from eaglegate.engine.vllm_parts import Promise, find_broken_promises

LORA_KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


class DepthWorker(DraftReloader, ExecutionReporter):
    """Base that vLLM adds to its worker. Importing this module applies the patches."""


def propose_draft_token_ids(
    original: Callable[..., Any],
    runner: GPUModelRunner,
    scheduler_output: SchedulerOutput,
    *args: Any,
    **kwargs: Any,
) -> Any:
    skip = getattr(scheduler_output, SKIP, False)
    if skip and not runner.use_async_scheduling:
        return torch.empty(runner.input_batch.num_reqs, 0, device=runner.device, dtype=torch.int64)
    setattr(runner.drafter, SKIP, skip)
    return original(runner, scheduler_output, *args, **kwargs)


def propose(
    original: Callable[..., Any], drafter: SpecDecodeBaseProposer, *args: Any, **kwargs: Any
) -> Any:
    if not getattr(drafter, SKIP, False):
        return original(drafter, *args, **kwargs)
    requests = kwargs["common_attn_metadata"].batch_size()
    return torch.empty(requests, 0, device=drafter.device, dtype=torch.int64)


def update_positions(
    original: Callable[..., Any],
    drafter: SpecDecodeBaseProposer,
    positions: torch.Tensor,
    metadata: Any,
    batch_size: int,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Find the slots of the next draft tokens by their indices, and continue their rotary
    positions."""
    if not drafter.vllm_config.model_config.uses_mrope:
        return original(drafter, positions, metadata, batch_size, *args, **kwargs)
    limit = drafter.max_model_len - 1
    next_positions = ((positions[0] if drafter.uses_mrope else positions) + 1).clamp(max=limit)
    indices = (metadata.seq_lens[:batch_size] - 1).to(positions.dtype)
    if drafter.uses_mrope:
        indices = indices.expand(len(positions), -1)
    updated_positions = original(drafter, indices, metadata, batch_size, *args, **kwargs)
    updated_positions[...] = next_positions
    return updated_positions


def load_model(
    original: Callable[..., Any], drafter: SpecDecodeBaseProposer, *args: Any, **kwargs: Any
) -> Any:
    result = original(drafter, *args, **kwargs)
    inner_model: Any = getattr(drafter.model, "model", None)
    embedding = getattr(inner_model, "embed_tokens", None)
    if isinstance(embedding, BaseLayerWithLoRA):
        inner_model.embed_tokens = embedding.base_layer
    return result


def apply_sampling_constraints(
    original: Callable[..., Any], logits: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Skip constraints without drafts, because vLLM takes the maximum of an empty list of top-k
    values."""
    return original(logits, *args, **kwargs) if len(logits) else logits


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Expand ``[a, b]`` with two and one tokens to ``[a, a, b]``; one value may be replaced."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, replace_to, x) if replace_from != replace_to else x
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def mask_negative_indices(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``kernel`` without effect on tokens with a negative index."""

    def masked(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        indices: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with_adapter = indices >= 0
        if not bool(with_adapter.all()):
            inputs = inputs * with_adapter.unsqueeze(1).to(inputs.dtype)
            indices = indices.clamp(min=0)
        return kernel(inputs, weights, output, indices, *args, **kwargs)

    return masked


def patch_kernels() -> None:
    """Replace the kernels in every vLLM module that has their names."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for name in LORA_KERNELS:
        kernel = mask_negative_indices(getattr(lora_ops, name))
        setattr(lora_ops, name, kernel)
        setattr(punica_cpu, name, kernel)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def patch_text() -> None:
    """Apply the patches for drafts. Without them nothing may be drafted."""
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker import gpu_input_batch, gpu_model_runner

    from eaglegate.engine.vllm_backend import second_runner, steering

    _wrap(GPUModelRunner, "propose_draft_token_ids", propose_draft_token_ids)
    _wrap(SpecDecodeBaseProposer, "propose", propose)
    _wrap(SpecDecodeBaseProposer, "load_model", load_model)
    _wrap(SpecDecodeBaseProposer, "_update_positions_dependent_metadata", update_positions)
    _wrap(gpu_model_runner, "build_logitsprocs", steering.build_logitsprocs)
    _wrap(rejection_sampler.RejectionSampler, "apply_logits_processors", steering.apply_to_drafts)
    _wrap(Sampler, "apply_logits_processors", steering.apply_to_samples)
    _wrap(gpu_input_batch.InputBatch, "_make_sampling_metadata", steering.make_sampling_metadata)
    _wrap(
        gpu_input_batch,
        "maybe_create_thinking_budget_state_holder",
        steering.make_thinking_budgets,
    )
    if HAS_TRITON:
        second_runner.patch(_wrap)
    if current_platform.is_cpu():
        _wrap(rejection_sampler, "apply_sampling_constraints", apply_sampling_constraints)
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def patch_seeds() -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    from eaglegate.engine.vllm_backend import seeded_rows

    _wrap(GPUModelRunner, "_sample", seeded_rows.sample)
    _wrap(GPUModelRunner, "_bookkeeping_sync", seeded_rows.bookkeeping_sync)
    _wrap(TopKTopPSampler, "__call__", seeded_rows.draw)
    _wrap(rejection_sampler, "rejection_sample", seeded_rows.verify)
    _wrap(RejectionSampler, "_verify", seeded_rows.verify_again)


def patch_prompt_rows() -> None:
    from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

    from eaglegate.engine.vllm_backend import prompt_rows

    _wrap(GPUModelRunner, "_get_prompt_logprobs_dict", prompt_rows.get_prompt_logprobs)
    method = "compute_prompt_logprobs"
    _wrap(PromptLogprobsWorker, method, prompt_rows.compute_prompt_logprobs)


PATCHES = {
    Promise.TEXT: patch_text,
    Promise.SEEDS: patch_seeds,
    Promise.AUDITS: patch_prompt_rows,
}
"""The patches that each promise needs. A promise that this vLLM breaks gets none."""

exit_with_parent()
for method, stage in STAGES.items():
    _wrap(Worker, method, partial(time_stage, stage))
left_out = {*find_broken_promises(), *os.environ.get(LEFT_OUT, "").split(",")}
for promise, patch in PATCHES.items():
    if promise not in left_out:
        patch()
for plugin in load_plugins("worker_plugin"):
    if plugin.PROMISE not in left_out:
        plugin.patch(_wrap, DepthWorker)
if current_platform.is_cpu():
    # vLLM's attention uses AMX without asking Linux for its registers, and SIGILL ends the engine
    # (csrc/cpu/cpu_attn_amx.hpp). Returns False on a CPU without AMX.
    torch.cpu._init_amx()
    patch_kernels()
    for method in ("determine_available_memory", "compile_or_warm_up_model"):
        _wrap(CPUWorker, method, partial(time_stage, STAGES[method]))
