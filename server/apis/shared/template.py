"""Input of a chat template: placeholders for media, template variables, and a request's own
template.

A text model cannot read images, audio or files. In the user's current turn they are refused. In
earlier messages and tool results a placeholder replaces them, since otherwise every later request
of the conversation would fail. ``--history-media refuse`` refuses these as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from eaglegate.server.access.notices import Notices
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.text.parsing.tools import ARGUMENT
from eaglegate.text.rendering.template import GLOBALS, INSTRUCTIONS, RESERVED, strip_billing

END = " omitted: this model reads text only]"
UNCLEAN = re.compile(r"[^a-z0-9_]")
MAX_KIND = 40
"""Maximum number of characters of a type that are used."""


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """Policy for the non-text parts of a message."""

    replaced: bool
    """True if a placeholder replaces them; False if they are refused."""
    notices: Notices = field(default_factory=Notices)

    def in_message(self, is_newest: bool) -> MediaPolicy:
        """Return the policy for one message: those of the current turn refuse other parts."""
        return MediaPolicy(False, self.notices) if is_newest else self

    def text(self, kind: str, path: str) -> str:
        """Return the placeholder for a part of type ``kind``. Raises InvalidRequest if it is
        refused.
        """
        kind = kind[:MAX_KIND]
        if not self.replaced:
            raise InvalidRequest(
                f"'{path}' has type '{kind}'; this model reads text only. Leave it out.",
                param=path,
            )
        self.notices.note(f"messages[].content[{kind}]")
        return placeholder(kind)


def placeholder(kind: str) -> str:
    return f"[{_short_kind(kind)}{END}"


def join_parts(role: str, texts: Sequence[str]) -> str | list[dict[str, str]]:
    """Return the content of a message whose parts have these texts.

    The parts stay separate, because the template decides: the renderer gives them to a template
    that iterates over parts, and joins them with line breaks for any other. Tool results are always
    joined so, as in vLLM. So are placeholders, which belong on lines of their own.
    """
    if role in INSTRUCTIONS:
        texts = [*map(strip_billing, texts)]
    texts = [text for text in texts if text]
    if len(texts) < 2 or role == "tool" or any(text.endswith(END) for text in texts):
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def is_newest(roles: Sequence[str]) -> list[bool]:
    """Return for each message whether it is a user message that no assistant message follows."""
    last = max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)
    return [role == "user" and index > last for index, role in enumerate(roles)]


def _short_kind(kind: str) -> str:
    """Shorten a type: image_url and input_image become image."""
    name = UNCLEAN.sub("", kind[:MAX_KIND].lower())
    return name.removeprefix("input_").removesuffix("_url") or "content"


RAW = "raw_arguments"
"""Member for arguments that are not a JSON object. The messages API delivers them under the same
name.
"""
PARAM = "chat_template_kwargs"
MAX_TEMPLATE_CHARS = 256 << 10


def template_kwargs(
    served: ServedModel, requested: Mapping[str, Any] | None, **derived: Any
) -> dict[str, Any]:
    """Merge the operator's variables, variables derived from other fields (``derived``) and the
    request's own.

    Later ones take precedence. The renderer drops variables that the template does not read. Raises
    InvalidRequest.
    """
    if not requested:
        return {**served.template_kwargs, **derived}
    variables = {name: value for name, value in requested.items() if name != "chat_template"}
    for name in variables:
        if name in RESERVED or name in GLOBALS:
            raise InvalidRequest(
                f"'{PARAM}.{name}' is not a variable of a chat template: it belongs to the "
                "gateway or the tokenizer. Leave it out.",
                param=f"{PARAM}.{name}",
            )
    return {**served.template_kwargs, **derived, **variables}


def own_template(
    served: ServedModel, variables: Mapping[str, Any] | None, field: str | None = None
) -> str | None:
    """Return the request's own template, if the operator allows one. Raises InvalidRequest.

    ``field`` is the value of the field ``chat_template``, which takes precedence.
    """
    param = f"{PARAM}.chat_template" if field is None else "chat_template"
    template = (variables or {}).get("chat_template") if field is None else field
    if template is None:
        return None
    if not served.trusts_templates:
        raise InvalidRequest(
            f"'{param}' is not allowed: the operator sets the chat template (--chat-template). "
            "Start the gateway with --trust-request-chat-template to allow it.",
            param=param,
            code="unsupported_parameter",
        )
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"'{param}' must be a string of at most {MAX_TEMPLATE_CHARS} characters.", param=param
        )
    return template


def effort_kwargs(effort: str | None) -> dict[str, Any]:
    """Return the template variables for an effort; ``none`` turns thinking off."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **(thinking_kwargs(False) if effort == "none" else {})}


def thinking_kwargs(enabled: bool | None) -> dict[str, Any]:
    """Return both common names of the thinking switch; empty if the template decides."""
    return {} if enabled is None else {"enable_thinking": enabled, "thinking": enabled}


def custom_call(id: str, name: str, text: str) -> dict[str, Any]:
    """Return a custom tool's call as a function call."""
    function = {"name": name, "arguments": {ARGUMENT: text}}
    return {"id": id, "type": "function", "function": function}


def parse_arguments(text: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return arguments as an object, because templates iterate over them.

    Invalid arguments are kept unchanged in a member ``RAW``. They stay in the conversation's
    history, so refusing them would fail every later turn.
    """
    if isinstance(text, dict):
        return text
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {RAW: text}
