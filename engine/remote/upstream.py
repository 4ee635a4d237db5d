"""A worker's address, connection settings, and the local copy of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Upstream:
    """One worker's address. ``str()`` gives the text that ``parse_upstream`` reads, without
    credentials."""

    url: str
    """Scheme, host, port and optional path, without a trailing slash."""
    prefix: str = ""
    """The worker's protocol, a key of ``ENGINES`` in ``protocols.py``."""
    authorization: str | None = field(default=None, repr=False, compare=False)
    """Authorization from ``http://user:password@...``, sent to this worker instead of the key."""

    def __str__(self) -> str:
        return self.prefix + self.url


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Credentials and time limits of worker connections; seconds unless stated otherwise."""

    key: str | None = None
    """Key to send as a bearer token."""
    connect_s: float = 5.0
    first_token_s: float = 300.0
    """Seconds from the request to its first token: the worker's queue and prefill."""
    idle_s: float = 60.0
    """Longest time between two chunks of a stream."""
    start_s: float = 600.0
    """Longest time that ``start`` waits for a worker that is loading."""
    connections: int = 1024
    """Most connections to one worker."""
    strict_advisories: bool = False
    """True refuses workers with advisories."""


class Codec(Protocol):
    """The model's tokenizer. Thread-safe."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def spells_special_tokens(self, text: str, token_ids: Sequence[int]) -> bool:
        """Return True if ``text``, tokenized again, would have special tokens that these ids do not
        have."""
        ...


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Files of a model on the gateway's machine, without its weights."""

    name: str
    codec: Codec
    vocab_size: int
    max_model_len: int | None = None
    """Context length in the model's config; None if it has none. The worker may allow less."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """The model's generation config, by the field names of ``eaglegate.engine.types.Sampling``."""
    placeholder: int | None = None
    """Id of the token that stands for an image in a prompt; None if the model reads text only."""
    recurrent: bool = False
    """True if some of its layers are recurrent."""
