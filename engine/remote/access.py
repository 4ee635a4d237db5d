"""Where a worker is, which language it speaks, and how patient one is with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

TEXT_PREFIX = "text+"


class Speaks(StrEnum):
    """What goes over the wire."""

    TOKENS = "tokens"
    """vLLM's ``/inference/v1/generate``: token ids both ways, and the account of speculation."""
    TEXT = "text"
    """OpenAI's ``/v1/completions``: text out, nothing known about speculation."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One worker's address. ``str()`` gives what ``parse`` reads."""

    url: str
    """Scheme, host, port and perhaps a path, without a slash at the end."""
    speaks: Speaks = Speaks.TOKENS

    @classmethod
    def parse(cls, given: str) -> Upstream:
        """``http://host:port`` or ``text+http://host:port``. Raises ValueError."""
        url = given.strip().removeprefix(TEXT_PREFIX).rstrip("/")
        speaks = Speaks.TEXT if given.strip().startswith(TEXT_PREFIX) else Speaks.TOKENS
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"a worker's address is http://HOST:PORT, or text+http://HOST:PORT for one that "
                f"speaks text only; given {given!r}"
            )
        return cls(url.removesuffix("/v1"), speaks)

    def __str__(self) -> str:
        return (TEXT_PREFIX if self.speaks is Speaks.TEXT else "") + self.url


@dataclass(frozen=True, slots=True)
class Access:
    """How workers are talked to; seconds unless it says otherwise."""

    key: str | None = None
    """Sent as a bearer token."""
    connect_s: float = 5.0
    first_token_s: float = 300.0
    """From the request to its first token: waiting in the worker's queue and prefill."""
    idle_s: float = 60.0
    """Between two pieces of a stream."""
    start_s: float = 600.0
    """How long ``start`` waits for a worker that is still loading."""
    connections: int = 1024
    """Most connections to one worker."""
