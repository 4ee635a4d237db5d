"""Seeded requests in vLLM's second model runner: its own kernel, our way to verify drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.triton_utils import HAS_TRITON
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

from eaglegate.engine.vllm_backend import position_noise
from eaglegate.engine.vllm_backend.patches import second_seeds

SEEDS = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 77, 2**40])
VOCABULARY = 2500


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton, or its interpreter")
@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_its_kernel_draws_the_same_tokens_as_the_first_runner(scale: float) -> None:
    rows = 24
    logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1)) * scale
    owners, positions = torch.arange(rows) % len(SEEDS), torch.arange(rows) * 37
    theirs = gumbel_sample(
        logits,
        owners,
        torch.ones(len(SEEDS)),
        SEEDS,
        positions,
        apply_temperature=False,
        is_drafting=False,
    )
    assert torch.equal(theirs, position_noise.sample(logits, SEEDS[owners], positions))


def sample_like_the_kernel(
    logits: torch.Tensor,
    owners: torch.Tensor,
    _: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    **__: Any,
) -> torch.Tensor:
    return position_noise.sample(logits, seeds[owners], positions)


@pytest.mark.parametrize("forced", [None, "synthetic", "watermark"])
def test_drafts_of_seeded_requests_are_accepted_where_they_are_the_sample(
    forced: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request's second draft is wrong; the second has no seed; all of the third's are
    right. Acceptance that is made up, and watermarks, stay vLLM's.
    """
    monkeypatch.setattr(second_seeds, "gumbel_sample", sample_like_the_kernel)
    begins, owners = torch.tensor([0, 3, 4, 8]), torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
    logits = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(8)
    tokens = position_noise.sample(logits, SEEDS[owners], positions)
    drafts = torch.full((8,), -1)
    drafts[1], drafts[5], drafts[6], drafts[7] = tokens[0], tokens[4], tokens[5], tokens[6]
    states = SimpleNamespace(
        seeds_set=np.array([True, False, True]),
        temperature=SimpleNamespace(gpu=torch.ones(3)),
        seeds=SimpleNamespace(gpu=SEEDS),
    )
    sampler: Any = SimpleNamespace(
        sampler=SimpleNamespace(sampling_states=states, use_fp64_gumbel=False),
        synthetic_conditional_rates=0.5 if forced == "synthetic" else None,
        watermark_key=1 if forced == "watermark" else None,
    )
    vllm_s = logits, torch.full((3, 4), -9), torch.full((3,), 9, dtype=torch.int32)
    _, sampled, num_sampled = second_seeds.verify(
        lambda *_: vllm_s,
        sampler,
        *(logits, None, drafts, positions, begins, None, np.arange(3)),
        *(owners, None, None, drafts),
    )
    if forced:
        assert (num_sampled.tolist(), sampled.min()) == ([9, 9, 9], -9)
        return
    assert num_sampled.tolist() == [2, 9, 4]
    assert sampled[0, :2].tolist() == tokens[:2].tolist()
    assert sampled[1].tolist() == [-9] * 4
    assert sampled[2].tolist() == tokens[4:].tolist()
