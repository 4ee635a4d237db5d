"""Request bodies: read up to a limit, parsed as strict JSON, and validated.

A known field is used, accepted without effect (docs/api.md lists these) or refused (``fields``).
Any other field is ignored, counted, and listed in a response header (``Notices``), or refused under
``--unknown-fields refuse``.

orjson is fast and refuses NaN, invalid UTF-8 and lone surrogates. But it silently accepts duplicate
keys, of which a proxy may have checked the other one, and numbers that no double can represent. If
there are more colons than keys, or an unusual number, the body is parsed again by the standard
library's scanner, whose hooks refuse both. The limits are checked before, on the body without its
strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from eaglegate.server.access.budget import RequestCharge
from eaglegate.server.access.caller import find_caller
from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.shared.fields import RequestModel
from eaglegate.server.errors import BodyTooLarge, InvalidRequest, UnsupportedEncoding

if TYPE_CHECKING:
    from eaglegate.server.apis.shared.gateway import Gateway

MAX_MESSAGES = 4096
MAX_TOOLS = 1024
MAX_DEPTH = 64
MAX_DIGITS = 40
MAX_ITEMS = 200_000
"""Maximum number of values in one body, at all levels together."""
MAX_CONTAINERS = 50_000
"""Maximum number of objects and arrays in one body; each one is visited."""
_STRING = re.compile(rb'"[^"]*"')
"""JSON strings, after escaped quotes were removed."""
_BRACKET = re.compile(rb"[][{}]")
_UNUSUAL = re.compile(rb"[0-9][eE]|[0-9.]{%d}" % (MAX_DIGITS + 1))
"""A number with an exponent, or with many digits."""
SHOWN = 80
"""Maximum number of characters of an invalid value in an error message."""


class BadJSON(ValueError):
    """The body is not acceptable JSON. ``str(error)`` is one sentence for the client."""


def loads(body: bytes) -> Any:
    """Parse a body as strict JSON. Raises BadJSON."""
    skeleton = _strip_strings(body)
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        location = f"line {error.lineno}, column {error.colno}"
        raise BadJSON(f"The body is not valid JSON: {error.msg} ({location}).") from None
    if skeleton.count(b":") != _count_keys(data) or _UNUSUAL.search(skeleton):
        _SECOND.decode(body.decode())
    return data


def _strip_strings(body: bytes) -> bytes:
    """Return the body without its strings.

    Raises BadJSON for too many or too deep values, before any of them is created.
    """
    plain = body
    if b"\\" in body:
        plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * MAX_ITEMS:
        raise _too_many()
    skeleton = _STRING.sub(b"", plain)
    containers = skeleton.count(b"[") + skeleton.count(b"{")
    if skeleton.count(b",") + containers >= MAX_ITEMS:
        raise _too_many()
    if containers > MAX_CONTAINERS:
        raise BadJSON(f"The body may hold at most {MAX_CONTAINERS} objects and arrays.")
    if containers > MAX_DEPTH:
        _check_depth(skeleton)
    return skeleton


def _check_depth(skeleton: bytes) -> None:
    depth = 0
    for bracket in _BRACKET.findall(skeleton):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise BadJSON(f"The body may be nested at most {MAX_DEPTH} levels deep.")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse duplicate keys. The values are ignored."""
    if len({key for key, _ in pairs}) == len(pairs):
        return
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise BadJSON(f"The key '{key[:80]}' is given twice in one object.")
        keys.add(key)


def _check_integer(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise BadJSON(f"A number may have at most {MAX_DIGITS} digits; one has {len(digits)}.")


def _check_decimal(text: str) -> None:
    if len(text) > 2 * MAX_DIGITS or abs(float(text)) == float("inf"):
        raise BadJSON(f"The number {text[:MAX_DIGITS]} is too large or too long.")


_SECOND = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates, parse_int=_check_integer, parse_float=_check_decimal
)


def _count_keys(data: Any) -> int:
    keys, values = 0, [data]
    for value in values:
        if value.__class__ is dict:
            keys += len(value)
            values += value.values()
        elif value.__class__ is list:
            values += value
    return keys


def _too_many() -> BadJSON:
    return BadJSON(f"The body may hold at most {MAX_ITEMS} values.")


def find_header(request: Request, name: bytes) -> str | None:
    """Return the first header with this lower-case name, without building a mapping of all
    headers.
    """
    for header, value in request.scope["headers"]:
        if header == name:
            text: str = value.decode("latin-1")
            return text
    return None


Model = TypeVar("Model", bound=RequestModel)


async def read_model(
    request: Request, gateway: Gateway, model: type[Model], default: bytes = b""
) -> Model:
    """Read and validate a body; ``default`` replaces an empty one. Raises GatewayError."""
    caller = find_caller(request.scope)
    body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
    return await caller.charge.parse(lambda: parse(body or default, model, caller.notices))


async def read_body(request: Request, charge: RequestCharge, limit: int) -> bytes:
    """Read and charge the whole body. Raises BodyTooLarge as soon as it exceeds ``limit`` bytes."""
    _check_encoding(find_header(request, b"content-encoding"))
    length = find_header(request, b"content-length") or "0"
    if length.isdecimal() and int(length) > limit:
        raise _body_too_large(limit, int(length))
    receive = request.receive
    chunks: list[bytes] = []
    size, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("The client disconnected while sending the body.")
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > limit:
            raise _body_too_large(limit, size)
        charge.hold(len(chunk))
        chunks.append(chunk)
    charge.estimate()
    return b"".join(chunks)


def _check_encoding(encoding: str | None) -> None:
    """Raise UnsupportedEncoding for a compressed body: a few bytes of gzip can become gigabytes."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding(
            f"The body has the content encoding '{encoding[:40]}'; send it uncompressed, without "
            "the header 'content-encoding'."
        )


def _body_too_large(limit: int, size: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body may have at most {limit} bytes (--max-body-bytes); given {size} or more."
    )


def parse(body: bytes, model: type[Model], notices: Notices) -> Model:
    """Parse and validate a body. Raises InvalidRequest."""
    return validate(read_json(body), model, notices)


def read_json(body: bytes) -> Any:
    """Parse a body as JSON. Raises InvalidRequest."""
    try:
        return loads(body)
    except BadJSON as error:
        raise InvalidRequest(str(error), code="invalid_json") from None


def validate(data: Any, model: type[Model], notices: Notices) -> Model:
    """Validate a parsed body. Raises InvalidRequest.

    Unknown fields are ignored and listed in ``notices``.
    """
    if not isinstance(data, dict):
        raise InvalidRequest(f"The body must be a JSON object; given {_abbreviate(data)}.")
    try:
        request = model.model_validate(data)
    except ValidationError as error:
        raise _explain(error, data) from None
    unknown: list[str] = []
    find_unknown_fields(request, data, unknown)
    for name in unknown:
        notices.ignore(name)
    return request


DICTIONARY = re.compile(r"a valid dictionary( or (object|instance) .*)?")
"""pydantic's name of a JSON object."""


def _explain(error: ValidationError, data: Mapping[str, Any]) -> InvalidRequest:
    """Make the error for the first problem. In a union, this is the deepest one, preferably in the
    branch that matches the value's type.
    """
    problem = max(
        error.errors(include_url=False),
        key=lambda item: (len(item["loc"]), not item["type"].endswith("_type")),
    )
    path = _path(problem["loc"], data, problem["type"] == "missing")
    if problem["type"] == "extra_forbidden":
        return InvalidRequest(f"Unrecognized request argument supplied: {path}", param=path)
    if problem["type"] == "missing":
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path)
    rule = DICTIONARY.sub("an object", problem["msg"])
    return InvalidRequest(
        f"Invalid value for '{path}': {rule}; given {_abbreviate(problem['input'])}.",
        param=path,
    )


def _path(loc: tuple[int | str, ...], data: Any, is_missing: bool) -> str:
    """Format a location as messages[0].content, without pydantic's names of union branches.

    A part that ``data`` does not have at that place is such a name, except for the last part if the
    field is missing.
    """
    out, value = "", data
    for index, part in enumerate(loc):
        if isinstance(part, int):
            out += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, dict) and part in value:
            out += _join(out, part)
            value = value[part]
        elif is_missing and index == len(loc) - 1:
            out += _join(out, part)
    return out


def _join(path: str, name: str) -> str:
    """Return the text that adds ``name`` to ``path``; empty for a name that is not a field's."""
    if not (name.isidentifier() and name[0].islower()):
        return ""
    return f".{name}" if path else name


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def find_unknown_fields(model: object, value: Any, paths: list[str], path: str = "") -> None:
    """Append the paths of unknown fields, without indices, once per occurrence.

    ``value`` is the data that ``model`` was made of. Open models are skipped, since their members
    belong to the chat template.
    """
    if value.__class__ is not dict or not isinstance(model, RequestModel):
        return
    names, read = _list_names(type(model)), model.__dict__
    for key in value:
        if key not in names:
            if key not in model.refused:
                paths.append(path + key)
        elif value[key].__class__ is dict:
            find_unknown_fields(read[names[key]], value[key], paths, f"{path}{key}.")
        elif value[key].__class__ is list:
            _find_in_items(read[names[key]], value[key], paths, f"{path}{key}[].")


def _find_in_items(items: object, values: list[Any], paths: list[str], path: str) -> None:
    if isinstance(items, list) and items and isinstance(items[0], RequestModel):
        for item, value in zip(items, values, strict=False):
            find_unknown_fields(item, value, paths, path)


@cache
def _list_names(model: type[BaseModel]) -> Mapping[str, str]:
    """Return a model's field names by their names in a body."""
    return {item.alias or name: name for name, item in model.model_fields.items()}
