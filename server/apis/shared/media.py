"""Images, audio and files, which a text model cannot read.

What the user asks about now is refused. In what was said before, and in what a tool returned, a
placeholder takes their place, for otherwise every later request of the conversation would fail;
``--history-media refuse`` refuses there, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.apis.shared.notices import note
from server.errors import InvalidRequest

END = " omitted: this model reads text only]"
UNCLEAN = re.compile(r"[^a-z0-9_]")
MAX_KIND = 40
"""Characters of a type that are looked at."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Where a message stands, as far as what it holds besides text."""

    replaced: bool
    """A placeholder takes its place."""

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
    return f"[{_named(kind)}{END}"


def join(texts: Sequence[str], between: str = "") -> str:
    """The texts of a message's parts; a placeholder has a line of its own."""
    placed = any(text.endswith(END) for text in texts)
    return ("\n" if placed else between).join(texts)


def is_newest(roles: Sequence[str]) -> list[bool]:
    """Of each message, whether the user asks with it now: nothing of the assistant's follows."""
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return [role == "user" and at > last for at, role in enumerate(roles)]


def _named(kind: str) -> str:
    """image_url and input_image -> image"""
    name = UNCLEAN.sub("", kind[:MAX_KIND].lower())
    return name.removeprefix("input_").removesuffix("_url") or "content"
