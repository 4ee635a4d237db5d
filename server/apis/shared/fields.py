"""Base class of request models, and fields that several APIs share.

These are sampling fields, vLLM's extensions, response formats and content parts. ``refused`` lists
known fields that cannot be served and whose loss would change the answer. Any value but a neutral
one is refused with a 400 that names the field and the reason. Messages and content parts are open
models: their unknown members are passed to the chat template.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from eaglegate.server.errors import InvalidRequest

Element = TypeVar("Element")
Many = Annotated[list[Element], Field(fail_fast=True)]
"""A list that reports only its first invalid item, since reporting all of them could take
seconds.
"""

MAX_CHOICES = 128
MAX_PATTERN = 256
MAX_BAD_WORDS = 128
"""vLLM's limit. vLLM counts a word twice if it is tokenized differently after a space."""
INT64 = 1 << 63
MAX_STEERED = 1024
MAX_STOP_TOKENS = 100
"""vLLM's second model runner has room for 1024 steered tokens and 128 stop tokens, including the
model's own. A request with more would crash the engine on a GPU.
"""
WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
SWITCHES: Mapping[str | int, bool] = {"true": True, "false": False, 1: True, 0: False}


class RequestModel(BaseModel):
    """Base class of request models. Types are strict, except for conversions by
    ``coerce_fields``.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    refused: ClassVar[Mapping[str, str]] = {}
    """Known fields that cannot be served, and why. None, False and empty values are allowed."""
    refusal_details: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Machine-readable details of the refusal by field."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if data.__class__ is not dict:
            return data
        if not cls.refused or cls.refused.keys().isdisjoint(data):
            return coerce_fields(cls, data)
        refused_names = cls.refused.keys() & data.keys()
        for name in refused_names:
            if data[name] and not _moves_no_cache(name, data[name]):
                raise InvalidRequest(
                    f"'{name}' is not supported: {cls.refused[name]}.",
                    param=name,
                    code="unsupported_parameter",
                    details=cls.refusal_details.get(name),
                )
        supported_fields = {
            name: value for name, value in data.items() if name not in refused_names
        }
        return coerce_fields(cls, supported_fields)


KV_TRANSFER = {
    "kv_transfer_params": "this gateway takes no KV cache from another server and hands none on, "
    "so the prompt would be read twice; send the requests of a prefill-decode pair to vllm serve"
}


def _moves_no_cache(name: str, value: Any) -> bool:
    """Return True for ``kv_transfer_params`` that ask for no transfer: offloading has some too."""
    if name not in KV_TRANSFER or not isinstance(value, dict):
        return False
    return not (value.get("do_remote_decode") or value.get("do_remote_prefill"))


class OpenModel(BaseModel):
    """Part of a request whose unknown members are kept for the chat template."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def coerce_fields(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert numbers and switches given as text to the types of their fields."""
    kinds = _scalar_fields(model)
    coerced_fields = dict(data)
    for name in data:
        if name in kinds and data[name].__class__ is not kinds[name]:
            coerced_fields[name] = _coerce(data[name], kinds[name])
    return coerced_fields


@cache
def _scalar_fields(model: type[BaseModel]) -> dict[str, type]:
    """Return the fields whose value is a number or a boolean."""
    types = {name: _plain_types(item.annotation) for name, item in model.model_fields.items()}
    return {
        name: float if float in leaves else next(iter(leaves))
        for name, leaves in types.items()
        if leaves and (leaves <= {int, float} or leaves == {bool})
    }


def _plain_types(annotation: Any) -> set[type]:
    """Return the types that a value may have, except None and containers' items."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain_types(arguments[0])
    if origin is Literal:
        return {type(value) for value in arguments}
    if origin is None or not arguments or isinstance(origin, type):
        plain_type = origin or annotation
        if not _is_union(annotation):
            return set() if plain_type is type(None) else {plain_type}
    return set().union(*map(_plain_types, arguments))


def _is_union(annotation: Any) -> bool:
    return type(annotation).__name__ in ("UnionType", "_UnionGenericAlias")


def _coerce(value: Any, kind: type) -> Any:
    if kind is bool:
        return SWITCHES.get(value, value) if isinstance(value, str | int) else value
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is int and isinstance(value, str) and WHOLE.fullmatch(value):
        return int(value)
    if kind is float and isinstance(value, str):
        return _to_float(value)
    return value


def _to_float(text: str) -> Any:
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenCount = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=-INT64, lt=INT64)]
TokenId = Annotated[int, Field(ge=0)]
BadWord = Annotated[str, Field(min_length=1, max_length=256)]
SpeculationMetrics = Literal["none", "summary", "detailed"]


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(RequestModel):
    """vLLM's ``structured_outputs``. Exactly one field must be set."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[Many[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class RepetitionDetection(RequestModel):
    """vLLM's rule that ends an answer which repeats a pattern of tokens."""

    max_pattern_size: Annotated[int, Field(ge=1, le=MAX_PATTERN)]
    min_pattern_size: Annotated[int, Field(ge=0, le=MAX_PATTERN)] = 0
    min_count: Annotated[int, Field(ge=2)]


class EngineFields(RequestModel):
    """Fields that all OpenAI endpoints pass to the engine: OpenAI's names first, then vLLM's."""

    stop: str | Annotated[Many[str], Field(max_length=16)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_STEERED)] | None = None
    seed: Seed | None = None
    user: str | None = None

    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    allowed_token_ids: (
        Annotated[Many[TokenId], Field(min_length=1, max_length=MAX_STEERED)] | None
    ) = None
    bad_words: Annotated[Many[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None
    repetition_detection: RepetitionDetection | None = None
    stop_token_ids: Annotated[Many[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    per_request_spec_decode_metrics: SpeculationMetrics | None = None
    return_steps: bool | None = None
    vllm_xargs: dict[str, str | int | float | Many[str | int | float]] | None = None
    priority: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    request_id: str | None = None


def _check_truncation(value: int) -> int:
    if value != -1 and value < 1:
        raise PydanticCustomError(
            "truncation", "Input should be -1, for as many tokens as fit, or at least 1"
        )
    return value


TruncatedLength = Annotated[
    int,
    AfterValidator(_check_truncation),
    WithJsonSchema({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]}),
]


class SamplingFields(EngineFields):
    """Further fields of chat completions and completions."""

    max_tokens: TokenCount | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: TruncatedLength | None = None
    truncation_side: Literal["left", "right"] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[Many[str], Field(min_length=1)] | None = None
    guided_grammar: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    session_id: Annotated[str, Field(max_length=256)] | None = None


UNSUPPORTED_VLLM = KV_TRANSFER | {
    "logits_processors": "requests cannot contain code",
    "logprob_token_ids": "use 'top_logprobs' or 'logprobs'",
    "use_beam_search": "there is no beam search",
    "watermarking": "this engine adds no watermark",
}


def type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def tag_parts(tags: Mapping[str, str], text: str = "Other") -> Discriminator:
    """Select a model by ``type``: Other for a type without a tag, and ``text`` for plain text."""

    def find_tag(value: Any) -> str:
        kind = type_of(value)
        if isinstance(value, str):
            return text
        return tags.get(kind, "Other") if isinstance(kind, str) else "Other"

    return Discriminator(find_tag)


def call_tag(value: Any) -> str:
    return "Custom" if type_of(value) == "custom" else "Function"


CALL_DISCRIMINATOR = Discriminator(call_tag)
"""Selects the model tagged Custom or Function. Unknown types are validated as Function."""


class TextPart(OpenModel):
    type: Literal["text"]
    text: str


class RefusalPart(OpenModel):
    type: Literal["refusal"]
    refusal: str


class OtherPart(OpenModel):
    """Images, audio and files. They are parsed so that the error can name their type."""

    type: str


FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class CustomGrammar(OpenModel):
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomFormat(CustomGrammar):
    """Format of a custom tool's text. The Responses API has no ``grammar`` level."""

    type: Literal["text", "grammar"]
    grammar: CustomGrammar | None = None


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    type: Literal["json_object"]


class JsonSchema(RequestModel):
    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class StructuralTagFormat(OpenModel):
    """vLLM's structural tag: ``format``, or the older ``structures`` and ``triggers``."""

    type: Literal["structural_tag"]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat,
    Field(discriminator="type"),
]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Verbosity = Literal["low", "medium", "high"]

ServiceTier = Annotated[str, Field(max_length=64)]
"""Any value is accepted, because there is only one tier. The response names it."""

Metadata = Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


class CacheHints(RequestModel):
    """Fields accepted without effect, since the engine caches prefixes automatically."""

    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None
