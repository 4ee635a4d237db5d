"""The pixels of an image are limited at the start, unless the operator has chosen a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eaglegate.engine.vllm_backend.arguments import MAX_PIXELS, limit_pixels

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


@pytest.mark.parametrize(
    ("processor", "kwargs"),
    [
        (QWEN, {"size": {"shortest_edge": 1, "longest_edge": 2}}),
        (QWEN, {"max_pixels": 9}),
        ({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336}}, None),
        ({}, None),
    ],
)
def test_another_limit_or_processor_stays(processor: dict[str, Any], kwargs: Any) -> None:
    model = make_model(processor, kwargs)
    limit_pixels(model)
    assert model.multimodal_config.mm_processor_kwargs == kwargs


def test_a_text_model_has_no_limit() -> None:
    model = SimpleNamespace(hf_image_processor_config={}, multimodal_config=None)
    limit_pixels(model)  # type: ignore[arg-type]
