"""Sampling fields that vLLM refuses beside a draft, and ``patches/bias_and_min_p.py`` applies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from vllm.v1.engine.input_processor import InputProcessor

from eaglegate.engine.vllm_backend.class_names import WORKER


class AllowSteering:
    """Middleware for ``vllm serve --middleware`` that lets its API process accept these fields if
    the workers are eaglegate's.

    Requests pass through. Only the creation of the middleware in the API process matters.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        allow_in_process()

    async def __call__(self, *asgi: Any) -> None:
        await self._app(*asgi)


def allow_in_process() -> None:
    """Make every input processor of this process accept the fields."""
    validate = InputProcessor._validate_params

    def validate_params(processor: InputProcessor, *args: Any, **kwargs: Any) -> Any:
        allow_fields(processor)
        return validate(processor, *args, **kwargs)

    InputProcessor._validate_params = validate_params


def allow_fields(processor: InputProcessor) -> None:
    """Make vLLM accept the fields. It refuses them only because it knows of a draft, a knowledge
    that it otherwise uses only to replay traces."""
    if processor.vllm_config.parallel_config.worker_extension_cls == WORKER:
        processor.speculative_config = None
