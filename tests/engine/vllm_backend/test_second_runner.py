"""Patches of the second model runner, on vLLM's own state and without an engine."""

from __future__ import annotations

from inspect import unwrap

import numpy as np
import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.worker.gpu.lora_utils import LoraState

from eaglegate.engine.vllm_backend.patches.second_adapter_rows import ROWS, make_lora_inputs


@pytest.fixture
def state() -> LoraState:
    """Three requests, in slots of another order; the one in the middle has no adapter."""
    made = LoraState(max_num_reqs=8)
    for name, slot, adapter in (("a", 5, 2), ("b", 0, None), ("c", 3, 7)):
        request = None if adapter is None else LoRARequest(name, adapter, "/nowhere")
        made.add_request(name, slot, request)
    return made


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([4, 1, 2], (2, 2, 2, 2, 0, 7, 7)), ([1, 1, 1], (2, 0, 7))],
)
def test_every_row_of_logits_has_the_adapter_of_its_request(
    state: LoraState, rows: list[int], expected: tuple[int, ...]
) -> None:
    setattr(state, ROWS, np.array(rows))
    original = unwrap(LoraState.make_lora_inputs)
    given = ["a", "b", "c"], np.array([5, 0, 3]), np.array([4, 9, 2])
    logits, tokens, adapters = make_lora_inputs(original, state, *given)
    assert logits == expected
    assert tokens == (2,) * 4 + (0,) * 9 + (7,) * 2
    assert {one.lora_int_id for one in adapters} == {2, 7}
    assert len(original(state, *given)[0]) == 3, "vLLM names one adapter per request"
