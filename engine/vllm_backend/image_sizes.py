"""Sizes to which images are scaled down before vLLM sees them: those that processors take."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from vllm.config import ModelConfig

from eaglegate.engine.vllm_backend.arguments import MAX_PIXELS, PROCESSOR, QWEN_IMAGES

TILED_PIXELS = 8 << 20
"""Pixels that are enough for processors of other kinds, which cut an image into few tiles."""
Fit = Callable[[int, int], tuple[int, int]]
"""From an image's width and height to those of its picture."""


def find_fit(model: ModelConfig) -> Fit:
    """Return the function from an image's size to the size that a model's processor takes of it.

    Processors of Qwen's kind then find nothing to scale.
    """
    settings = getattr(model, "hf_image_processor_config", None) or {}
    if model.multimodal_config is None or QWEN_IMAGES not in str(settings.get(PROCESSOR)):
        return partial(fit_pixels, max_pixels=TILED_PIXELS)
    own = model.multimodal_config.mm_processor_kwargs or {}
    limits = (
        (source.get("size") or {}).get("longest_edge") or source.get("max_pixels")
        for source in (own, own.get("images_kwargs") or {}, settings)
    )
    factor = settings.get("patch_size", 14) * settings.get("merge_size", 2)
    return partial(fit_patches, next(filter(None, limits), MAX_PIXELS), factor)


def fit_pixels(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Scale a size down to about ``max_pixels``. Sides are rounded up, so that none is 0."""
    scale = min(1.0, math.sqrt(max_pixels / (width * height)))
    return math.ceil(width * scale), math.ceil(height * scale)


def fit_patches(max_pixels: int, factor: int, width: int, height: int) -> tuple[int, int]:
    """Scale a size down as Qwen's processors do. A smaller one stays."""
    if width * height <= max_pixels:
        return width, height
    rows, columns = smart_resize(height, width, factor, 1, max_pixels)
    return columns, rows
