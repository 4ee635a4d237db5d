"""Steps that verify nothing: vLLM's description of their logits, and who gets the patch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from eaglegate.engine.vllm_backend.patches import Place, load_patches, plain_steps
from eaglegate.engine.vllm_parts import Promise

FIELDS = (
    "draft_token_ids", "cu_num_draft_tokens", "cu_num_sampled_tokens", "target_logits_indices",
    "bonus_logits_indices", "logits_indices",
)  # fmt: skip


def refuse(*_args: object) -> None:
    raise AssertionError("vLLM's own function was called")


@pytest.mark.parametrize("tokens", [[1], [1, 1, 1], [7, 1, 30]])
def test_the_logits_are_where_vllm_finds_them(tokens: list[int]) -> None:
    runner = SimpleNamespace(
        device=torch.device("cpu"),
        input_ids=SimpleNamespace(gpu=torch.arange(64, dtype=torch.int32)),
        arange_np=np.arange(64),
        _arange_scratch=np.arange(64),
    )
    runner._get_cumsum_and_arange = GPUModelRunner._get_cumsum_and_arange.__get__(runner)
    patched = GPUModelRunner._calc_spec_decode_metadata
    calculate = getattr(patched, "__wrapped__", patched)
    drafts = np.zeros(len(tokens), dtype=np.int32)
    ends = np.cumsum(tokens, dtype=np.int32)
    found = plain_steps.calculate_metadata(refuse, runner, drafts, ends)
    expected = calculate(runner, drafts, ends)
    assert found.num_draft_tokens == expected.num_draft_tokens
    for field in FIELDS:
        assert getattr(found, field).tolist() == getattr(expected, field).tolist(), field


def test_a_pod_has_the_patch() -> None:
    left_out = {Promise.SEEDS, Promise.AUDITS}
    assert plain_steps in load_patches({Place.FIRST_RUNNER}, left_out)
