"""Ignored parts of a request: listed in a response header, and counted.

Everything ignored goes through ``ignore``, which raises under ``--unknown-fields refuse``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import InvalidRequest

HEADER = "x-eaglegate-ignored-fields"
MAX_NAMES = 16
MAX_LENGTH = 64
"""Characters of one name, and how many names the header may hold."""
UNCLEAN = re.compile(r"[^A-Za-z0-9_.\-\[\]]")
REFUSE = "refuse"


@dataclass(slots=True)
class Notices:
    """Those of one request."""

    refuses: bool = False
    names: dict[str, None] = field(default_factory=dict)
    """In the order they came; a name is a path in the body, without indices."""

    def ignore(self, name: str, rule: str) -> None:
        if self.refuses:
            raise InvalidRequest(f"{rule}: {name[:MAX_LENGTH]}", param=name[:MAX_LENGTH])
        self.note(name)

    def note(self, name: str) -> None:
        self.names[UNCLEAN.sub("_", name[:MAX_LENGTH])] = None

    def header(self) -> bytes:
        listed = list(self.names)[:MAX_NAMES]
        more = len(self.names) - len(listed)
        return (", ".join(listed) + (f" and {more} more" if more else "")).encode()


_current: ContextVar[Notices | None] = ContextVar("notices", default=None)


def note(name: str) -> None:
    """List ``name`` in the header, even under ``--unknown-fields refuse``."""
    notices = _current.get()
    if notices is not None:
        notices.note(name)


def ignore(name: str, rule: str = "Unrecognized request argument supplied") -> None:
    """Ignore ``name``. Raises InvalidRequest under ``--unknown-fields refuse``."""
    notices = _current.get()
    if notices is not None:
        notices.ignore(name, rule)


class NoticeObserver(Protocol):
    """The part of ``engine.observer.Observer`` that counts ignored fields."""

    def record_ignored_fields(self, api: str, names: Sequence[str]) -> None: ...


class NoticePolicy(Protocol):
    """The part of the gateway that decides about unknown fields."""

    @property
    def unknown_fields(self) -> str: ...

    @property
    def observer(self) -> NoticeObserver: ...


class NoticeHeader:
    """ASGI middleware: adds the header to responses and reports to the observer."""

    def __init__(self, app: ASGIApp, gateway: NoticePolicy) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        notices = Notices(refuses=self._gateway.unknown_fields == REFUSE)

        async def sending(message: Message) -> None:
            if notices.names and message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (HEADER.encode(), notices.header())]
                message = {**message, "headers": headers}
                self._gateway.observer.record_ignored_fields(scope["path"], tuple(notices.names))
            await send(message)

        token = _current.set(notices)
        try:
            await self._app(scope, receive, sending)
        finally:
            _current.reset(token)
