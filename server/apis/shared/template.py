"""Input of a chat template: text in place of media, variables, and a request's own template.

A text model reads no images, audio or files. In what the user asks now they are refused. In earlier
messages and in tool results a placeholder takes their place, or else every later request of the
conversation would fail; with ``--history-media refuse`` these are refused, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from eaglegate.server.apis.shared.request import note
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import ServedModel
from eaglegate.text.parsing.tools import ARGUMENT
from eaglegate.text.rendering.template import GLOBALS, RESERVED

END = " omitted: this model reads text only]"
UNCLEAN = re.compile(r"[^a-z0-9_]")
MAX_KIND = 40
"""Characters of a type that are used."""


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """Policy for the non-text parts of a message."""

    replaced: bool
    """A placeholder replaces them; else they are refused."""

    def text(self, kind: str, path: str) -> str:
        """The placeholder of a part of type ``kind``. Raises InvalidRequest where it is refused."""
        kind = kind[:MAX_KIND]
        if not self.replaced:
            raise InvalidRequest(
                f"'{path}' has type '{kind}'; this model reads text only. Leave it out.",
                param=path,
            )
        note(f"messages[].content[{kind}]")
        return placeholder(kind)


def placeholder(kind: str) -> str:
    return f"[{_short_kind(kind)}{END}"


def join(texts: Sequence[str], between: str = "") -> str:
    """The joined texts of a message's parts; each placeholder is on its own line."""
    placed = any(text.endswith(END) for text in texts)
    return ("\n" if placed else between).join(texts)


def is_newest(roles: Sequence[str]) -> list[bool]:
    """Return for each message whether it is in the user's current turn: no assistant
    message follows.
    """
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return [role == "user" and at > last for at, role in enumerate(roles)]


def _short_kind(kind: str) -> str:
    """image_url and input_image -> image"""
    name = UNCLEAN.sub("", kind[:MAX_KIND].lower())
    return name.removeprefix("input_").removesuffix("_url") or "content"


RAW = "raw_arguments"
"""The member for text that is no JSON object; the messages API delivers it under the same name."""
PARAM = "chat_template_kwargs"
MAX_TEMPLATE_CHARS = 256 << 10


def template_kwargs(
    served: ServedModel, asked: Mapping[str, Any] | None, **meant: Any
) -> dict[str, Any]:
    """The operator's variables, other fields' (``meant``), the request's own; the last wins.

    A variable that the template does not read is dropped by the renderer. Raises InvalidRequest.
    """
    if not asked:
        return {**served.template_kwargs, **meant}
    given = {name: value for name, value in asked.items() if name != "chat_template"}
    for name in given:
        if name in RESERVED or name in GLOBALS:
            raise InvalidRequest(
                f"'{PARAM}.{name}' is not a variable of a chat template: it belongs to the "
                "gateway or the tokenizer. Leave it out.",
                param=f"{PARAM}.{name}",
            )
    return {**served.template_kwargs, **meant, **given}


def own_template(
    served: ServedModel, asked: Mapping[str, Any] | None, named: str | None = None
) -> str | None:
    """The request's own template, if the operator allows one. Raises InvalidRequest.

    ``named`` is the value of the field ``chat_template``, which takes precedence.
    """
    param = f"{PARAM}.chat_template" if named is None else "chat_template"
    given = (asked or {}).get("chat_template") if named is None else named
    if given is None:
        return None
    if not served.trusts_templates:
        raise InvalidRequest(
            f"'{param}' is not allowed: the operator sets the chat template (--chat-template). "
            "Start the gateway with --trust-request-chat-template to allow it.",
            param=param,
            code="unsupported_parameter",
        )
    if not isinstance(given, str) or len(given) > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"'{param}' must be a string of at most {MAX_TEMPLATE_CHARS} characters.", param=param
        )
    return given


def effort_kwargs(effort: str | None) -> dict[str, Any]:
    """Template variables for an effort; ``none`` turns thinking off."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **(thinking_kwargs(False) if effort == "none" else {})}


def thinking_kwargs(on: bool | None) -> dict[str, Any]:
    """Both names of the switch in templates; empty if the template decides."""
    return {} if on is None else {"enable_thinking": on, "thinking": on}


def custom_call(id: str, name: str, text: str) -> dict[str, Any]:
    """A custom tool's call as a call of its function."""
    function = {"name": name, "arguments": {ARGUMENT: text}}
    return {"id": id, "type": "function", "function": function}


def parse_arguments(text: str | dict[str, Any] | None) -> dict[str, Any]:
    """Arguments as an object, because templates iterate over them; the model writes text.

    Invalid arguments stay in the history, so refusing them would fail every later turn. The model
    sees them unchanged, in an object of their own.
    """
    if isinstance(text, dict):
        return text
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {RAW: text}
