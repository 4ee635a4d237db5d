"""Rows of drafts get what the sampler gives the same rows without a draft."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor import (
    BatchUpdateBuilder,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

from eaglegate.engine.vllm_backend import steering
from eaglegate.engine.vllm_backend.class_names import WORKER
from eaglegate.engine.vllm_backend.refused_fields import AllowSteering

VOCABULARY = 50
COUNTS = [2, 0, 3, 1]
ROWS = [0, 0, 2, 2, 2, 3]
PARAMS = [
    SamplingParams(logit_bias={3: 5.0, 40: -100.0}, temperature=1.0),
    SamplingParams(logit_bias={3: 9.0}, min_p=0.9, temperature=1.0),
    SamplingParams(min_p=0.1, temperature=2.0),
    SamplingParams(min_p=0.3, logit_bias={1: -3.0}, temperature=0.5),
]


def processors() -> LogitsProcessors:
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8))
    device = torch.device("cpu")
    made = LogitsProcessors(
        kind(config, device, False)
        for kind in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    )
    builder = BatchUpdateBuilder()
    for at, params in enumerate(PARAMS):
        builder.added.append((at, params, [1], []))
    update = builder.get_and_reset(len(PARAMS))
    for processor in made.all:
        processor.update_state(update)
    return made


def steer(logits: torch.Tensor, temperature: torch.Tensor | None) -> torch.Tensor:
    metadata: Any = SimpleNamespace(num_draft_tokens=COUNTS)
    sampling: Any = SimpleNamespace(logitsprocs=processors(), temperature=temperature)
    sampler: Any = None
    return steering.apply_to_drafts(lambda *given: given[1], sampler, logits, sampling, metadata)


def plain(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Row by row as vLLM's sampler does it, with one row per request."""
    out = torch.empty_like(logits)
    for row, request in enumerate(ROWS):
        batch = logits[row].repeat(len(PARAMS), 1)
        made = processors()
        for processor in made.non_argmax_invariant:
            batch = processor.apply(batch)
        batch = batch / temperature.unsqueeze(1)
        for processor in made.argmax_invariant:
            batch = processor.apply(batch)
        out[row] = batch[request] * temperature[request]
    return out


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_drafts_are_steered_as_the_others(seed: int) -> None:
    logits = torch.randn(len(ROWS), VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    temperature = torch.tensor([params.temperature for params in PARAMS])
    want = plain(logits, temperature)
    got = steer(logits.clone(), temperature)
    assert torch.equal(torch.isneginf(got), torch.isneginf(want))
    torch.testing.assert_close(got, want)
    assert torch.isneginf(want).any() and not torch.isneginf(want).all(1).any()


def test_in_a_greedy_batch_min_p_masks_nothing() -> None:
    logits = torch.randn(len(ROWS), VOCABULARY)
    assert not torch.isneginf(steer(logits.clone(), None)).any()


def test_a_greedy_row_beside_sampled_ones_is_not_masked() -> None:
    logits = torch.randn(len(ROWS), VOCABULARY)
    temperature = torch.tensor([0.0, 1.0, 2.0, 0.5])
    got = steer(logits.clone(), temperature)
    assert not torch.isneginf(got[:2]).any()
    assert not got.isnan().any()


def test_without_drafts_there_is_nothing_to_do() -> None:
    counts = [0] * len(PARAMS)
    metadata: Any = SimpleNamespace(num_draft_tokens=counts)
    sampling: Any = SimpleNamespace(logitsprocs=processors(), temperature=torch.ones(4))
    sampler: Any = None
    empty = torch.empty(0, VOCABULARY)
    got = steering.apply_to_drafts(lambda *given: given[1], sampler, empty, sampling, metadata)
    assert got.shape == (0, VOCABULARY)


@pytest.mark.parametrize(("extension", "refused"), [(WORKER, False), ("mine.Extension", True)])
async def test_a_server_takes_both_fields_where_our_worker_runs(
    monkeypatch: pytest.MonkeyPatch, extension: str, refused: bool
) -> None:
    def verify(processor: Any, params: SamplingParams) -> str:
        params._validate_spec_decode(processor.speculative_config)
        return "taken"

    async def app(*asgi: Any) -> None:
        passed.append(asgi)

    passed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(InputProcessor, "_validate_params", verify)
    await AllowSteering(app)("scope", "receive", "send")
    assert passed == [("scope", "receive", "send")]
    parallel = SimpleNamespace(worker_extension_cls=extension)
    processor: Any = SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=parallel), speculative_config=object()
    )
    validate: Any = InputProcessor._validate_params
    for params in PARAMS:
        if refused:
            with pytest.raises(VLLMValidationError, match="min_p and logit_bias"):
                validate(processor, params)
        else:
            assert validate(processor, params) == "taken"
