"""Every field of every endpoint that a client can make large, found in the request models.

A new field is attacked by being there: bodies are made from the models' own annotations.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from eaglegate.server.apis.chat.request import ChatRequest
from eaglegate.server.apis.completions.to_job import CompletionRequest
from eaglegate.server.apis.messages.request import CountTokensRequest, MessagesRequest
from eaglegate.server.apis.operations.info import DetokenizeRequest, TokenizeRequest
from eaglegate.server.apis.responses.conversations import ConversationRequest
from eaglegate.server.apis.responses.request import ResponsesRequest
from eaglegate.server.apis.shared.fields import RequestModel

SAY = [{"role": "user", "content": "hi"}]
ENDPOINTS: dict[str, tuple[type[RequestModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": "demo", "messages": SAY, "max_tokens": 4}),
    "/v1/completions": (CompletionRequest, {"model": "demo", "prompt": "hi", "max_tokens": 4}),
    "/v1/responses": (ResponsesRequest, {"model": "demo", "input": "hi"}),
    "/v1/messages": (MessagesRequest, {"model": "demo", "messages": SAY, "max_tokens": 4}),
    "/v1/messages/count_tokens": (CountTokensRequest, {"model": "demo", "messages": SAY}),
    "/v1/conversations": (ConversationRequest, {}),
    "/tokenize": (TokenizeRequest, {"prompt": "hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
}
DEEPEST = 6
Step = tuple[str, dict[str, Any]]
"""A field of a model and what the model needs beside it, or ``[]`` for a list around it."""


@dataclass(frozen=True)
class Attack:
    """``grow`` makes the body with one field of about so many bytes."""

    url: str
    body: dict[str, Any]
    path: tuple[Step, ...]
    kind: str

    @property
    def name(self) -> str:
        return f"{self.url} {'.'.join(name for name, _ in self.path)} of {self.kind}"

    def grow(self, size: int) -> dict[str, Any]:
        value = SHAPES[self.kind](size)
        for name, beside in reversed(self.path):
            value = [value] if name == "[]" else {**beside, name: value}
        return self.body | value


def _objects(size: int) -> dict[str, Any]:
    count = max(1, size // 40)
    return {
        "type": "object",
        "properties": {f"p{at}": {"type": "string"} for at in range(count)},
    }


SHAPES: dict[str, Any] = {
    "text": lambda size: "a b " * (size // 4),
    "unbroken text": lambda size: "x" * size,
    "texts": lambda size: ["ab"] * (size // 5),
    "numbers": lambda size: [7] * (size // 2),
    "wrong items": lambda size: [{"type": 3}] * (size // 11),
    "objects": lambda size: [{"type": "text", "text": "x"}] * (size // 28),
    "keys": lambda size: {str(at): 1 for at in range(size // 10)},
    "schema": _objects,
    "branches": lambda size: {"oneOf": [{"const": at} for at in range(size // 16)]},
}


def attacks() -> Iterator[Attack]:
    for url, (model, body) in ENDPOINTS.items():
        for path, hint in _fields(model, ()):
            for kind in _kinds(hint):
                yield Attack(url, body, path, kind)


def _fields(
    model: type[BaseModel], path: tuple[Step, ...]
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    if len(path) > DEEPEST:
        return
    for name, info in model.model_fields.items():
        beside = {} if not path else _needed(model, name)
        at = (*path, (info.alias or name, beside))
        yield at, info.annotation
        for inner, more in _models(info.annotation):
            yield from _fields(inner, (*at, *((step, {}) for step in more)))


def _needed(model: type[BaseModel], name: str) -> dict[str, Any]:
    """Values of the other required fields of a model, where one is easily made up."""
    out: dict[str, Any] = {}
    for other, info in model.model_fields.items():
        leaves = list(_leaves(info.annotation))
        if other == name or not info.is_required():
            continue
        if typing.Literal in leaves:
            out[info.alias or other] = typing.get_args(info.annotation)[0]
        elif str in leaves:
            out[info.alias or other] = "x"
    return out


def _models(hint: Any) -> Iterator[tuple[type[BaseModel], tuple[str, ...]]]:
    """Models inside an annotation, and whether a list is around them."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint, ()
        return
    inside = typing.get_args(hint)
    listed = ("[]",) if typing.get_origin(hint) is list else ()
    for part in inside[:1] if typing.get_origin(hint) is typing.Annotated else inside:
        for model, more in _models(part):
            yield model, (*listed, *more)


def _kinds(hint: Any) -> list[str]:
    """The shapes, right or wrong, that a field of this annotation could take."""
    found = set(_leaves(hint))
    out: list[str] = []
    if str in found:
        out += ["text", "unbroken text"]
    if list in found:
        out += ["texts", "numbers", "wrong items", "objects"]
    if dict in found:
        out += ["keys", "schema", "branches"]
    return out


def _leaves(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from _leaves(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _leaves(part)
    else:
        yield origin or hint
