from typing import Any

import pytest
from msgspec.structs import replace
from vllm.config.speculative import SpeculativeConfig
from vllm.exceptions import QueueOverflowError, VLLMValidationError
from vllm.logprobs import Logprob
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from eaglegate.engine.errors import EngineDead, EngineFailed, EngineOverloaded, RequestRejected
from eaglegate.engine.remote import wire
from eaglegate.engine.types import Constraint, EngineRequest, RepetitionStop, Sampling
from eaglegate.engine.vllm_backend import translate
from eaglegate.engine.vllm_contract import DRAFT_K
from eaglegate.engine.vllm_fields import build_structured_outputs, is_reasoning_ended

REQUEST = EngineRequest("r", (1, 2), Sampling(max_tokens=5, temperature=0.0))


def test_lossy_speculation_is_told() -> None:
    lookup = {"method": "ngram", "num_speculative_tokens": 2}
    dice = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    exact = translate._describe_speculation(SpeculativeConfig(**lookup))
    lossy = translate._describe_speculation(SpeculativeConfig(**lookup, **dice))
    assert (exact.lossy, "LOSSY" in exact.summary) == ((), False)
    assert lossy.lossy is not None
    assert any("synthetic" in sentence for sentence in lossy.lossy)
    assert "LOSSY, text may differ: rejection_sample_method" in lossy.summary


def test_the_depth_beside_longer_tokens_is_the_drafts_own() -> None:
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=8)
    speculation = translate._describe_speculation(config, {DRAFT_K: 3})
    assert speculation.depth == 3
    assert "K = 3, draft ngram" in speculation.summary
    assert translate._describe_speculation(config).depth == 8


def test_sampling_asks_for_tokens_and_not_for_text() -> None:
    params = translate.make_sampling_params(REQUEST)
    assert (params.detokenize, params.max_tokens, params.temperature) == (False, 5, 0.0)
    assert params.extra_args == {"traffic": "chat"}


@pytest.mark.parametrize(
    ("fields", "extra"),
    [
        ({"depth": 0}, {"traffic": "chat", "num_speculative_tokens": 0}),
        ({"lookup": 0}, {"traffic": "chat", "lookup": 0}),
        ({"workload": "agent", "tenant": "team-a"}, {"traffic": "agent", "tenant": "team-a"}),
    ],
)
def test_depth_lookups_and_slice_travel_in_extra_args(
    fields: dict[str, Any], extra: dict[str, Any]
) -> None:
    assert translate.make_sampling_params(replace(REQUEST, **fields)).extra_args == extra


def test_repetition_is_told_as_vllm_and_as_its_server_take_it() -> None:
    sampling = replace(REQUEST.sampling, repetition=RepetitionStop(3, 1, 4))
    params = translate.make_sampling_params(replace(REQUEST, sampling=sampling))
    assert params.repetition_detection.min_count == 4
    told = wire.build_sampling_params(replace(REQUEST, sampling=sampling), depth=False)
    assert told["repetition_detection"] == {
        "max_pattern_size": 3,
        "min_pattern_size": 1,
        "min_count": 4,
    }


@pytest.mark.parametrize(
    ("constraint", "field", "value"),
    [
        (Constraint("json_schema", '{"type": "object"}'), "json", '{"type": "object"}'),
        (Constraint("json_object"), "json_object", True),
        (Constraint("regex", "a+"), "regex", "a+"),
        (Constraint("choice", choices=("a", "b")), "choice", ["a", "b"]),
        (Constraint("grammar", "root ::= a"), "grammar", "root ::= a"),
        (Constraint("structural_tag", "{}"), "structural_tag", "{}"),
    ],
)
def test_every_constraint_has_its_field(constraint: Constraint, field: str, value: object) -> None:
    params = StructuredOutputsParams(**(build_structured_outputs(constraint) or {}))
    assert getattr(params, field) == value


def test_only_a_constraint_after_reasoning_waits_for_its_end() -> None:
    assert is_reasoning_ended(None) is None
    assert is_reasoning_ended(Constraint("regex", "a")) is True
    assert is_reasoning_ended(Constraint("regex", "a", after_reasoning=True)) is None


def test_logprobs_name_the_chosen_token_and_order_the_rest() -> None:
    given = {7: Logprob(-3.0, 9), 1: Logprob(-0.2, 1), 4: Logprob(-2.0, 2)}
    (position,) = translate.convert_output_logprobs((7,), [given], 2)
    assert (position.chosen.token_id, position.chosen.rank) == (7, 9)
    assert [entry.token_id for entry in position.top] == [1, 4]


def test_logprobs_nobody_asked_for_are_none() -> None:
    assert translate.convert_output_logprobs((7,), None, None) == ()
    assert translate.convert_prompt_logprobs((1,), None, None) is None
    assert translate.convert_prompt_logprobs((1, 2), [], 0) is None


def test_prompt_logprobs_start_with_nothing() -> None:
    given = [None, {2: Logprob(-1.0, 1)}]
    first, second = translate.convert_prompt_logprobs((1, 2), given, 1) or ()
    assert first is None
    assert second is not None
    assert second.chosen.token_id == 2


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (EngineDeadError(), EngineDead),
        (VLLMValidationError("bad", parameter="top_p"), RequestRejected),
        (QueueOverflowError(), EngineOverloaded),
        (EngineGenerateError(), EngineFailed),
        (ValueError("holds the prompt"), EngineFailed),
    ],
)
def test_errors_map(error: Exception, want: type[Exception]) -> None:
    assert type(translate.convert_error(error)) is want


def test_a_rejection_names_the_field_once() -> None:
    error = translate.convert_error(VLLMValidationError("top_p is 7", parameter="top_p", value=7))
    assert (str(error), getattr(error, "param", None)) == ("top_p is 7", "top_p")


def test_unknown_errors_do_not_leak_their_text() -> None:
    assert "prompt" not in str(translate.convert_error(ValueError("holds the prompt")))
