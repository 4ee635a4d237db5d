"""How far a server's ``/v1/completions`` goes, found out with a few requests of one token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.errors import EngineStartError
from engine.remote.connection import WorkerConnection, WorkerReply
from engine.remote.model import LocalModel
from engine.remote.reading import (
    extract_message,
    read_integer,
    read_json,
    read_list,
    read_object,
    read_optional_object,
)
from engine.types import Constraint

COMPLETIONS = "/v1/completions"
PROBE = "The first of them was a short one, and so it goes on until"
WORD = "eaglegate"
GENERATE_S = 120.0
AS_IT_IS = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""vLLM's and SGLang's: markers that are special tokens stay in the text, where parsers look."""
UNTOUCHED = {"add_special_tokens": False}
"""A rendered prompt has its special tokens."""
MOST_TOKENS = 1 << 20
SPARE = 1
"""A beginning-of-sequence token may be counted or not."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the worker understands."""

    takes_tokens: bool = False
    """A prompt of token ids: no second tokenizer can differ."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Sent with every request."""
    holds_to_json: bool = False
    """``response_format`` is obeyed, which was tried."""

    def can(self, constraint: Constraint) -> bool:
        json = constraint.kind in ("json_schema", "json_object")
        return json and self.holds_to_json and not constraint.after_reasoning

    @property
    def described(self) -> str:
        prompt = "prompts as token ids" if self.takes_tokens else "prompts as text"
        special = "special tokens kept" if self.extras else "special tokens unknown"
        return f"{prompt}, {special}, {'JSON schemas' if self.holds_to_json else 'no constraints'}"


async def detect_dialect(connection: WorkerConnection, model: LocalModel, name: str) -> Dialect:
    """Raises EngineStartError."""
    token_ids = model.codec.encode(PROBE, False)
    attempts: tuple[tuple[str | list[int], dict[str, Any]], ...] = (
        (token_ids, AS_IT_IS),
        (token_ids, {}),
        (PROBE, AS_IT_IS | UNTOUCHED),
        (PROBE, {}),
    )
    refusal = ""
    for prompt, extras in attempts:
        asked = {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, **extras}
        answer = await connection.ask(COMPLETIONS, asked, GENERATE_S)
        if answer.ok:
            _check_length(answer, len(token_ids), connection, model)
            holds = await _holds_to_json(connection, asked)
            return Dialect(not isinstance(prompt, str), extras, holds)
        refusal = f"{answer.status}: {extract_message(answer.body)}"
    raise EngineStartError(f"{connection.upstream}{COMPLETIONS} does not generate: {refusal}")


def _check_length(
    answer: WorkerReply, ours: int, connection: WorkerConnection, model: LocalModel
) -> None:
    """The prompt must have reached the model as it was. Raises EngineStartError."""
    said = read_object(read_json(answer.body, "the answer"), "the answer")
    counted = read_optional_object(said.get("usage"), "usage").get("prompt_tokens")
    if counted is None:
        return
    theirs = read_integer(counted, "prompt_tokens", 0, MOST_TOKENS)
    if abs(theirs - ours) > SPARE:
        raise EngineStartError(
            f"{connection.upstream} makes {theirs} tokens of a prompt that is {ours} for "
            f"{model.name}: it has another tokenizer, or puts prompts into a template of its own "
            "(as Ollama does, unless the model's TEMPLATE is {{ .Prompt }})."
        )


async def _holds_to_json(connection: WorkerConnection, asked: Mapping[str, Any]) -> bool:
    schema = orjson.dumps({"enum": [WORD]}).decode()
    wanted = {**asked, "max_tokens": 24, "response_format": build_json_schema(schema)}
    answer = await connection.ask(COMPLETIONS, wanted, GENERATE_S)
    if not answer.ok:
        return False
    said = read_object(read_json(answer.body, "the answer"), "the answer")
    choices = read_list(said.get("choices"), "choices", 1)
    texts = (read_object(choice, "a choice").get("text") for choice in choices)
    return any(str(text).strip() == f'"{WORD}"' for text in texts)


def build_json_schema(schema: str) -> dict[str, Any]:
    named = {"name": "answer", "schema": orjson.loads(schema), "strict": True}
    return {"type": "json_schema", "json_schema": named}
