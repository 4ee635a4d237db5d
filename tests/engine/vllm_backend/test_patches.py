"""The patches of vLLM's workers: their list, and which are applied where."""

from __future__ import annotations

from inspect import unwrap
from pathlib import Path

import pytest
import torch
from vllm.lora.ops.torch_ops import lora_ops

from eaglegate.engine.vllm_backend import patches
from eaglegate.engine.vllm_backend import worker as worker
from eaglegate.engine.vllm_backend.patches import PATCHES, Place, load_patches
from eaglegate.engine.vllm_contract import is_vllm_since
from eaglegate.engine.vllm_parts import Promise
from scripts.vllm_parts import rewrite_document

ROOT = Path(__file__).parents[3]


def test_the_page_lists_the_patches() -> None:
    page = (ROOT / "docs/upstream/README.md").read_text(encoding="utf-8")
    assert page == rewrite_document(page), "python -m scripts.vllm_parts docs/upstream/README.md"


def test_every_file_has_one_row() -> None:
    names = [name for *_, row in PATCHES for name in row.split()]
    files = {file.stem for file in Path(patches.__file__).parent.glob("*.py")}
    assert sorted(names) == sorted(files - {"__init__"})


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("left_out", [{Promise.TEXT}, {str(Promise.SEEDS), ""}])
def test_a_promise_left_out_gets_no_patch(place: Place, left_out: set[str]) -> None:
    expected = [
        name
        for promise, where, row in PATCHES
        for name in row.split()
        if where is place and promise not in left_out
        if name != "base_model_rows" or not is_vllm_since(0, 33)
    ]
    loaded = load_patches({place}, left_out)
    assert [module.__name__.rpartition(".")[2] for module in loaded] == expected


def test_vllm_033_needs_no_patch_for_requests_without_an_adapter() -> None:
    inputs, weights, output = torch.ones(1, 2), torch.ones(1, 1, 3, 2), torch.zeros(1, 3)
    unwrap(lora_ops.bgmv_shrink)(inputs, weights, output, torch.tensor([-1]), 1.0)
    assert (not output.any()) == is_vllm_since(0, 33)
