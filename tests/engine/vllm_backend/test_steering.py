"""A worker's own server takes the fields that vLLM refuses beside a draft."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from eaglegate.engine.vllm_backend.class_names import WORKER
from eaglegate.engine.vllm_backend.refused_fields import AllowSteering

PARAMS = (SamplingParams(logit_bias={3: 9.0}), SamplingParams(min_p=0.1, temperature=2.0))


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
