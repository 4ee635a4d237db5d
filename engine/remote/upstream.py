"""A worker's address and wire protocol, connection settings, and the local copy of its model."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote, urlsplit

ENGINES: Mapping[str, str] = {
    "": "eaglegate.engine.remote.engine:RemoteEngine",
    "text+": "eaglegate.engine.remote.text:TextEngine",
}
"""The engine that drives a worker, by what stands before the URL in its address."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One worker's address. ``str()`` is what ``parse`` reads, without credentials."""

    url: str
    """Scheme, host, port and optional path, without a trailing slash."""
    prefix: str = ""
    """Says what the worker speaks: a key of ``ENGINES``."""
    authorization: str | None = field(default=None, repr=False, compare=False)
    """Authorization from ``http://user:password@...``, sent to this worker instead of the key."""

    @classmethod
    def parse(cls, given: str) -> Upstream:
        """``http://host:port`` or ``text+http://host:port``. Raises ValueError."""
        prefix = max(filter(given.strip().startswith, ENGINES), key=len)
        url = given.strip().removeprefix(prefix).rstrip("/")
        if not _is_address(url):
            raise ValueError(
                "a worker's address must be http://HOST:PORT, or text+http://HOST:PORT for one "
                f"that speaks text only; given {_without_userinfo(given)!r}"
            )
        userinfo = urlsplit(url).netloc.rpartition("@")[0]
        clean = url.replace(f"//{userinfo}@", "//", 1).removesuffix("/v1")
        return cls(clean, prefix, encode_basic_auth(userinfo) if userinfo else None)

    def __str__(self) -> str:
        return self.prefix + self.url


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not (parts.query or parts.fragment)
        )
    except ValueError:
        return False


def _without_userinfo(given: str) -> str:
    _, found, rest = given.rpartition("@")
    return f"***@{rest}" if found else rest


def encode_basic_auth(userinfo: str) -> str:
    """The HTTP Basic authentication value of a percent-encoded ``user:password``."""
    user, _, password = userinfo.partition(":")
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Credentials and time limits of worker connections; seconds unless stated otherwise."""

    key: str | None = None
    """Sent as a bearer token."""
    connect_s: float = 5.0
    first_token_s: float = 300.0
    """Seconds from the request to its first token: the worker's queue and prefill."""
    idle_s: float = 60.0
    """Between two chunks of a stream."""
    start_s: float = 600.0
    """The longest ``start`` waits for a worker that is loading."""
    connections: int = 1024
    """The most connections to one worker."""


class Codec(Protocol):
    """The model's tokenizer. Thread-safe."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def spells_special_tokens(self, text: str, token_ids: Sequence[int]) -> bool:
        """Whether ``text``, tokenized again, would have special tokens that these ids do not."""
        ...


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model's files without its weights."""

    name: str
    codec: Codec
    vocab_size: int
    max_model_len: int | None = None
    """Context length of the model's config; None where it has none. The worker may allow less."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """Model's generation config, by the field names of ``eaglegate.engine.types.Sampling``."""
