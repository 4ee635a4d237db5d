"""Bytes to a request model, with errors that name the field, the value and the rule."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from server.apis.shared.models import RequestModel
from server.apis.shared.notices import ignore
from server.apis.shared.strict_json import BadJSON, loads
from server.apis.shared.unknown import unknown_fields
from server.errors import InvalidRequest

Model = TypeVar("Model", bound=RequestModel)

SHOWN = 80
"""Characters of a wrong value that an error message repeats."""


def parse(body: bytes, model: type[Model]) -> Model:
    """Raises InvalidRequest for anything that is not JSON, not an object, or breaks a rule.

    What ``model`` does not know is ignored, and the answer tells that.
    """
    try:
        data = loads(body)
    except BadJSON as error:
        raise InvalidRequest(str(error), code="invalid_json") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {type(data).__name__}.")
    try:
        asked = model.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from None
    for name in unknown_fields(asked, data):
        ignore(name)
    return asked


def _explain(error: ValidationError) -> InvalidRequest:
    """The first problem, in words; for unions the one that got furthest."""
    problem = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
    path = _path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", param=path)
    if problem["type"] == "missing":
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path)
    return InvalidRequest(
        f"Invalid value for '{path}': {problem['msg']}; given {_shown(problem['input'])}.",
        param=path,
    )


def _path(loc: tuple[int | str, ...]) -> str:
    """messages[0].content; the union branch names pydantic puts in between are left out."""
    out = ""
    for part in loc:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.isidentifier() and part[0].islower() and part not in _BRANCHES:
            out += f".{part}" if out else part
    return out


_BRANCHES = {"str", "int", "float", "bool", "dict", "list", "text", "json_object", "json_schema"}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
