"""Base of all request models, and parsing of a body into one.

A field we know is acted on, or accepted without effect, as docs/api.md lists. A field we know but
cannot serve, and whose loss would change the answer, is in ``refused``: any value but a neutral one
is a 400 that names the field and the reason. Any other field is ignored and listed in a header of
the answer (``notices``). Parts that a chat template may read (messages and their content) are open
models: unknown members go to the template.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from server.apis.shared.notices import ignore
from server.apis.shared.strict_json import BadJSON, loads
from server.errors import InvalidRequest

Element = TypeVar("Element")
Many = Annotated[list[Element], Field(fail_fast=True)]
"""A list that reports its first invalid item only: reporting all would take seconds."""

MAX_MESSAGES = 4096
MAX_TOOLS = 1024


class RequestModel(BaseModel):
    """Base of request models. Types are strict, except for what ``coerce_fields`` converts."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    refused: ClassVar[Mapping[str, str]] = {}
    """Known fields that cannot be served, and why; None, False and empty values are allowed."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls.refused.keys() & data.keys():
            if data[name]:
                raise InvalidRequest(
                    f"'{name}' is not supported: {cls.refused[name]}.",
                    param=name,
                    code="unsupported_parameter",
                )
        known = {name: value for name, value in data.items() if name not in cls.refused}
        return coerce_fields(cls, known)


class OpenModel(BaseModel):
    """A part of a request with members that only the chat template may know."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


Model = TypeVar("Model", bound=RequestModel)

SHOWN = 80
"""Characters of an invalid value that an error message shows."""


def parse(body: bytes, model: type[Model]) -> Model:
    """Raises InvalidRequest for anything that is not JSON, not an object, or breaks a rule."""
    return validate(read_json(body), model)


def read_json(body: bytes) -> Any:
    """Raises InvalidRequest."""
    try:
        return loads(body)
    except BadJSON as error:
        raise InvalidRequest(str(error), code="invalid_json") from None


def validate(data: Any, model: type[Model]) -> Model:
    """Raises InvalidRequest. Unknown fields are ignored and listed in a response header."""
    if not isinstance(data, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {type(data).__name__}.")
    try:
        asked = model.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from None
    for name in find_unknown_fields(asked, data):
        ignore(name)
    return asked


def _explain(error: ValidationError) -> InvalidRequest:
    """The error message of the first problem; for unions of the deepest."""
    problem = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
    path = _path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", param=path)
    if problem["type"] == "missing":
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path)
    return InvalidRequest(
        f"Invalid value for '{path}': {problem['msg']}; given {_abbreviate(problem['input'])}.",
        param=path,
    )


def _path(loc: tuple[int | str, ...]) -> str:
    """For example messages[0].content, without pydantic's names of union branches."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.isidentifier() and part[0].islower() and part not in _BRANCHES:
            out += f".{part}" if out else part
    return out


_BRANCHES = {"str", "int", "float", "bool", "dict", "list", "text", "json_object", "json_schema"}


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def find_unknown_fields(model: BaseModel, given: Any, path: str = "") -> Iterator[str]:
    """Their paths without indices, each as often as it is there; ``given`` is what was read.

    Open models are not looked into: what they hold is the chat template's to read.
    """
    if not isinstance(model, RequestModel) or not isinstance(given, dict):
        return
    names = {item.alias or name: name for name, item in type(model).model_fields.items()}
    for key, value in given.items():
        if key in names:
            yield from _find_within(getattr(model, names[key]), value, path + key)
        elif key not in model.refused:
            yield path + key


def _find_within(value: Any, given: Any, path: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from find_unknown_fields(value, given, path + ".")
    elif isinstance(value, list) and value and isinstance(value[0], RequestModel):
        for item, one in zip(value, given, strict=False):
            yield from find_unknown_fields(item, one, path + "[].")


WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
SWITCHES: Mapping[str | int, bool] = {"true": True, "false": False, 1: True, 0: False}


def coerce_fields(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with numbers and switches given as text converted to the fields' types."""
    kinds = _scalar_fields(model)
    return {name: _coerce(value, kinds.get(name)) for name, value in data.items()}


@cache
def _scalar_fields(model: type[BaseModel]) -> dict[str, type]:
    """The fields whose value is a number or a switch."""
    found = {name: _plain_types(item.annotation) for name, item in model.model_fields.items()}
    return {
        name: float if float in leaves else next(iter(leaves))
        for name, leaves in found.items()
        if leaves and (leaves <= {int, float} or leaves == {bool})
    }


def _plain_types(annotation: Any) -> set[type]:
    """The plain types that a value may have, except None."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain_types(arguments[0])
    if origin is Literal:
        return {type(value) for value in arguments}
    if origin is None or not arguments or isinstance(origin, type):
        plain = origin or annotation
        if not _is_union(annotation):
            return set() if plain is type(None) else {plain}
    return set().union(*map(_plain_types, arguments))


def _is_union(annotation: Any) -> bool:
    return type(annotation).__name__ in ("UnionType", "_UnionGenericAlias")


def _coerce(value: Any, kind: type | None) -> Any:
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
