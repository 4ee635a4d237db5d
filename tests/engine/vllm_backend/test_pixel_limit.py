"""The pixels of an image are limited at the start, unless the operator has chosen a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from eaglegate.engine.vllm_backend.arguments import MAX_PIXELS, limit_pixels
from eaglegate.engine.vllm_backend.image_sizes import TILED_PIXELS, find_fit

QWEN = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 3136, "longest_edge": 12845056},
}


def make_model(processor: dict[str, Any], kwargs: dict[str, Any] | None = None) -> Any:
    config = SimpleNamespace(mm_processor_kwargs=kwargs)
    return SimpleNamespace(hf_image_processor_config=processor, multimodal_config=config)


@pytest.mark.parametrize(
    ("processor", "largest"),
    [
        (QWEN, MAX_PIXELS),
        (QWEN | {"size": {"shortest_edge": 3136, "longest_edge": 1003520}}, 1003520),
        ({"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 12845056}, MAX_PIXELS),
    ],
)
def test_images_are_reduced_to_two_megapixels(processor: dict[str, Any], largest: int) -> None:
    model = make_model(processor, {"fps": 1})
    limit_pixels(model)
    size = {"shortest_edge": 3136, "longest_edge": largest}
    assert model.multimodal_config.mm_processor_kwargs == {"fps": 1, "size": size}
    assert find_fit(model)(1920, 1080) == ((1876, 1036) if largest == MAX_PIXELS else (1316, 728))
    assert find_fit(model)(900, 500) == (900, 500)


@pytest.mark.parametrize(
    ("processor", "kwargs", "taken"),
    [
        (QWEN, {"size": {"shortest_edge": 1, "longest_edge": 10000}}, 10000),
        (QWEN, {"max_pixels": 10000}, 10000),
        (QWEN, {"images_kwargs": {"max_pixels": 10000}}, 10000),
        (QWEN, {"min_pixels": 9}, 12845056),
        ({"image_processor_type": "IdeficsImageProcessor", "size": {"longest_edge": 336}}, None,
         TILED_PIXELS),
        ({}, None, TILED_PIXELS),
    ],
)  # fmt: skip
def test_another_limit_or_processor_stays(
    processor: dict[str, Any], kwargs: Any, taken: int
) -> None:
    model = make_model(processor, kwargs)
    limit_pixels(model)
    assert model.multimodal_config.mm_processor_kwargs == kwargs
    width, height = find_fit(model)(8000, 4000)
    assert taken / 2 < width * height <= taken


@pytest.mark.parametrize("size", [(1920, 1080), (8192, 4096), (300, 9000), (640, 480)])
def test_a_processor_makes_the_same_of_an_image_that_was_scaled_down(size: tuple[int, int]) -> None:
    model = make_model(QWEN)
    limit_pixels(model)
    width, height = size
    columns, rows = find_fit(model)(width, height)
    limits = {"factor": 28, "min_pixels": 3136, "max_pixels": MAX_PIXELS}
    assert smart_resize(rows, columns, **limits) == smart_resize(height, width, **limits)
    assert columns * rows <= MAX_PIXELS


def test_a_text_model_has_no_limit() -> None:
    model = SimpleNamespace(hf_image_processor_config={}, multimodal_config=None)
    limit_pixels(model)  # type: ignore[arg-type]
