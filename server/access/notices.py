"""Notices about one request, listed in a response header: fields that the gateway ignores."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass, field

from starlette.types import Message, Send

from eaglegate.engine.events import Observer
from eaglegate.server.errors import InvalidRequest

HEADER = "x-eaglegate-ignored-fields"
MAX_NAMES = 16
MAX_LENGTH = 64
"""Maximum length of a name in the header. ``MAX_NAMES`` limits the number of names."""
UNCLEAN = re.compile(r"[^A-Za-z0-9_.\-\[\]]")


@dataclass(slots=True)
class Notices:
    """Ignored fields and other notices about one request."""

    refuses: bool = False
    """True under ``--unknown-fields refuse``."""
    names: dict[str, None] = field(default_factory=dict)
    """Names of ignored fields in order: paths in the body without indices."""

    def ignore(self, name: str, rule: str = "Unrecognized request argument supplied") -> None:
        """Ignore ``name``. Raises InvalidRequest under ``--unknown-fields refuse``."""
        if self.refuses:
            raise InvalidRequest(f"{rule}: {name[:MAX_LENGTH]}", param=name[:MAX_LENGTH])
        self.note(name)

    def note(self, name: str) -> None:
        """List ``name`` in the header, even under ``--unknown-fields refuse``."""
        self.names[UNCLEAN.sub("_", name[:MAX_LENGTH])] = None

    def header(self) -> bytes:
        names = list(self.names)[:MAX_NAMES]
        num_omitted = len(self.names) - len(names)
        return (", ".join(names) + (f" and {num_omitted} more" if num_omitted else "")).encode()

    def show(self, send: Send, path: str, observer: Observer) -> Send:
        """Return a ``send`` that adds the header to the response, and reports the names."""

        def send_with_notices(message: Message) -> Awaitable[None]:
            if self.names and message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (HEADER.encode(), self.header())]
                message = {**message, "headers": headers}
                observer.record_ignored_fields(path, tuple(self.names))
            return send(message)

        return send_with_notices
