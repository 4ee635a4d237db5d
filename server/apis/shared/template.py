"""Input of a chat template: placeholders for media, template variables, and a request's own
template.

A model may read images; none reads audio or files. What the model cannot read is refused in the
user's current turn. In earlier messages and tool results a placeholder replaces it, since otherwise
every later request of the conversation would fail. ``--history-media refuse`` refuses these as
well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import orjson

from eaglegate.engine.types import ImageInput
from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.shared.images import IMAGE_PARTS, note_ignored, read_source
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.text.media.source import ImageSource
from eaglegate.text.parsing.tools import ARGUMENT
from eaglegate.text.rendering.template import (
    GLOBALS,
    IMAGE,
    INSTRUCTIONS,
    RESERVED,
    strip_billing,
)

END = " omitted: this model reads text only]"
UNREAD = " omitted: this model cannot read it here]"
"""The same for a model that reads images."""
UNCLEAN = re.compile(r"[^a-z0-9_]")
MAX_KIND = 40
"""Maximum number of characters of a type that are used."""
WITHOUT_IMAGES = (*INSTRUCTIONS, "assistant")
"""Roles in whose messages no image is read."""
TemplatePart = str | Mapping[str, str]
"""Text, or ``IMAGE``."""


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """Policy for the non-text parts of a conversation's messages, and the images in them."""

    replaced: bool
    """True if a placeholder replaces parts that the model cannot read; False if they are
    refused."""
    notices: Notices = field(default_factory=Notices)
    image_input: ImageInput | None = None
    """How the model takes images; None if it reads text only."""
    images: list[ImageSource] = field(default_factory=list)
    """Images in the order of the messages that were converted."""
    paths: dict[str, str] = field(default_factory=dict)
    """Places of items in the request, by item id."""

    @classmethod
    def of(cls, served_model: ServedModel, notices: Notices) -> MediaPolicy:
        return cls(served_model.replaces_media, notices, served_model.images)

    def in_message(self, is_newest: bool) -> MediaPolicy:
        """Return the policy for one message: those of the current turn refuse other parts."""
        return replace(self, replaced=False) if is_newest else self

    def convert(self, part: Mapping[str, Any], path: str, role: str) -> TemplatePart:
        """Return the template's part for a part without text. Raises InvalidRequest if it is
        refused, or if it is an image without data.
        """
        kind = str(part.get("type", ""))
        if not self.reads(kind, role):
            return self.text(kind, path)
        self.images.append(read_source(part, path))
        note_ignored(part, self.notices)
        return IMAGE

    def check_images(self, images: Sequence[ImageSource]) -> tuple[ImageSource, ...]:
        """Return the images of a prompt. Raises InvalidRequest if there are too many."""
        limit = 0 if self.image_input is None else self.image_input.max_images
        if len(images) > limit:
            raise InvalidRequest(
                f"'{images[limit].param}' is one image too many: a prompt may have at most {limit} "
                f"of them here, and this one has {len(images)}. Leave out the oldest.",
                param=images[limit].param,
            )
        return tuple(images)

    def reads(self, kind: str, role: str) -> bool:
        """Return True if the model reads a part of type ``kind`` in a message of this role."""
        can_read = self.image_input is not None and role not in WITHOUT_IMAGES
        return can_read and kind in IMAGE_PARTS

    def text(self, kind: str, path: str) -> str:
        """Return the placeholder for a part of type ``kind``. Raises InvalidRequest if it is
        refused.
        """
        kind = kind[:MAX_KIND]
        readable = "text only" if self.image_input is None else "text and images only"
        if not self.replaced:
            raise InvalidRequest(
                f"'{path}' has type '{kind}'; this model reads {readable}. Leave it out.",
                param=path,
            )
        self.notices.note(f"messages[].content[{kind}]")
        return self.placeholder(kind)

    def placeholder(self, kind: str) -> str:
        return f"[{_short_kind(kind)}{END if self.image_input is None else UNREAD}"


def join_parts(role: str, parts: Sequence[TemplatePart]) -> str | list[Mapping[str, str]]:
    """Return the content of a message that has these parts.

    The parts stay separate, because the template decides: the renderer gives them to a template
    that iterates over parts, and joins them with line breaks for any other. Tool results are always
    joined so, as in vLLM. So are placeholders, which belong on lines of their own.
    """
    if IMAGE in parts:
        return _list_parts(parts)
    texts = [part for part in parts if isinstance(part, str)]
    if role in INSTRUCTIONS:
        texts = [*map(strip_billing, texts)]
    texts = [text for text in texts if text]
    if len(texts) < 2 or role == "tool" or any(text.endswith((END, UNREAD)) for text in texts):
        return "\n".join(texts)
    return _list_parts(texts)


def join_lines(parts: Sequence[TemplatePart]) -> str | list[Mapping[str, str]]:
    """Return the content of a message with these parts, whose texts are lines.

    Only images separate the lines into parts.
    """
    if IMAGE not in parts:
        return "\n".join(part for part in parts if isinstance(part, str))
    joined: list[TemplatePart] = []
    for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
        run = [*group]
        joined += ["\n".join(map(str, run))] if is_text else run
    return _list_parts(joined)


def _list_parts(parts: Sequence[TemplatePart]) -> list[Mapping[str, str]]:
    return [
        {"type": "text", "text": part} if isinstance(part, str) else part for part in parts if part
    ]


def is_newest(roles: Sequence[str]) -> list[bool]:
    """Return for each message whether it is a user message that no assistant message follows."""
    last_index = max((index for index, role in enumerate(roles) if role == "assistant"), default=-1)
    return [role == "user" and index > last_index for index, role in enumerate(roles)]


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
    served_model: ServedModel, requested: Mapping[str, Any] | None, **derived_kwargs: Any
) -> dict[str, Any]:
    """Merge the operator's variables, variables derived from other fields (``derived_kwargs``) and
    the request's own.

    Later ones take precedence. The renderer drops variables that the template does not read. Raises
    InvalidRequest.
    """
    if not requested:
        return {**served_model.template_kwargs, **derived_kwargs}
    variables = {name: value for name, value in requested.items() if name != "chat_template"}
    for name in variables:
        if name in RESERVED or name in GLOBALS:
            raise InvalidRequest(
                f"'{PARAM}.{name}' is not a variable of a chat template: it belongs to the "
                "gateway or the tokenizer. Leave it out.",
                param=f"{PARAM}.{name}",
            )
    return {**served_model.template_kwargs, **derived_kwargs, **variables}


def own_template(
    served_model: ServedModel, variables: Mapping[str, Any] | None, field: str | None = None
) -> str | None:
    """Return the request's own template, if the operator allows one. Raises InvalidRequest.

    ``field`` is the value of the field ``chat_template``, which takes precedence.
    """
    param = f"{PARAM}.chat_template" if field is None else "chat_template"
    template = (variables or {}).get("chat_template") if field is None else field
    if template is None:
        return None
    if not served_model.trusts_templates:
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


def thinking_kwargs(is_enabled: bool | None) -> dict[str, Any]:
    """Return both common names of the thinking switch; empty if the template decides."""
    return {} if is_enabled is None else {"enable_thinking": is_enabled, "thinking": is_enabled}


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
