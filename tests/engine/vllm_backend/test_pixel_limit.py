"""The pixels of an image are limited at the start, unless the operator has chosen a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.vllm_backend.arguments import (
    MAX_PIXELS,
    TILED_PIXELS,
    limit_pixels,
    read_max_pixels,
)

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
    assert read_max_pixels(model) == largest


@pytest.mark.parametrize(
    ("processor", "kwargs", "taken"),
    [
        (QWEN, {"size": {"shortest_edge": 1, "longest_edge": 2}}, 2),
        (QWEN, {"max_pixels": 9}, 9),
        (QWEN, {"images_kwargs": {"max_pixels": 9}}, 9),
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
    assert read_max_pixels(model) == taken


def test_a_text_model_has_no_limit() -> None:
    model = SimpleNamespace(hf_image_processor_config={}, multimodal_config=None)
    limit_pixels(model)  # type: ignore[arg-type]
