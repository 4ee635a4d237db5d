"""API keys: hashed at rest, named, limited.

A key is 32 random bytes, so its plain SHA-256 cannot be reversed by guessing, and a lookup takes
microseconds. Keys come from flags, the environment and a YAML file::

    keys:
      - name: agents
        sha256: 9f86d0...            # from `eaglegate key agents`
        priority: high               # high, normal (default) or low
        weight: 2                    # share of the places within its class; default 1
        models: [demo]               # default: all
        requests_per_minute: 600
        tokens_per_minute: 100000
        images_per_minute: 120
        concurrency: 16
        depth: 3                     # draft tokens per step if the request sets none
        expires: 2027-01-31          # a date (its end, UTC) or a time with a zone
        admin: false                 # true opens /metrics, /debug and /admin; without a priority,
                                     # an admin key's requests go before all others
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eaglegate.engine.bounded_yaml import InvalidYaml, read_yaml
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import ConfigError, Unauthenticated

PREFIX = "eg-"
KEY_NAME = r"^[A-Za-z0-9._-]{1,64}$"
SECRET_FIELDS = frozenset({"name", "sha256"})
"""Fields of a key file in which somebody may have written the key itself."""
UNSHOWN = ("missing", "extra_forbidden", "model_type", "list_type")
"""Problems whose input is a whole entry, which may be the key itself, or a field that is not known.
"""
MIN_LENGTH = 16
"""Minimum length of a key given in plain text. Shorter keys could be guessed from their hash."""

ADMIN: dict[str, Any] = {"name": "admin", "admin": True, "priority": Priority.OPERATOR}
"""Attributes of the key from ``--admin-api-key``."""
NAME_DIGITS = 8
"""Hexadecimal digits of the hash that name a key given in plain text."""

Limit = Annotated[int, Field(ge=1)]


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def generate_key() -> str:
    """Return a new key in plain text. It is not stored anywhere."""
    return PREFIX + secrets.token_urlsafe(32)


def generate_key_entry(name: str) -> tuple[str, str]:
    """Return a new key in plain text, and its entry for the key file. Raises ValueError for a name
    that key files do not take.
    """
    if not re.fullmatch(KEY_NAME, name):
        raise ValueError(
            "the name of a key has 1 to 64 letters, digits, dots, underscores or hyphens; "
            f"given {name!r}"
        )
    key = generate_key()
    return key, f'- name: {name}\n  sha256: "{hash_key(key).hex()}"\n'


@dataclass(frozen=True, slots=True)
class KeyRing:
    """All API keys, replaced as a whole when the file is reloaded."""

    keys: tuple[ApiKey, ...] = ()
    clock: Callable[[], float] = field(default=time.time, compare=False)
    required: bool = False
    """True if a key is required even if none is configured; then all API requests are refused."""

    def __bool__(self) -> bool:
        """Return True if a key is required."""
        return self.required or bool(self.keys)

    def find(self, secret: str | None) -> ApiKey:
        """Return the key that matches ``secret``. Raises Unauthenticated.

        The time it takes does not depend on which key matches, if any.
        """
        if not secret:
            raise Unauthenticated(
                "An API key is required: send it as 'Authorization: Bearer KEY' or "
                "'x-api-key: KEY'.",
                code="missing_api_key",
            )
        digest = hash_key(secret)
        matches = [key for key in self.keys if hmac.compare_digest(key.digest, digest)]
        if not matches:
            raise Unauthenticated("The API key is invalid: this gateway does not know it.")
        if matches[0].expires is not None and matches[0].expires <= self.clock():
            raise Unauthenticated("The API key has expired.", code="expired_api_key")
        return matches[0]

    def succeed(self, predecessor: KeyRing) -> KeyRing:
        """Return this ring as the successor of ``predecessor``.

        Keys in both rings keep the usage of their current minute. A gateway that required keys
        continues to require them, even if none are left.
        """
        quotas = {key.name: key.quota for key in predecessor.keys}
        for key in self.keys:
            quota = quotas.get(key.name)
            if key.quota is not None and quota is not None:
                key.quota.resume(quota)
        return replace(self, required=bool(self or predecessor))

    def describe_lockout(self) -> str:
        """Return a warning if a key is required but none exists, else an empty string."""
        if self.keys or not self.required:
            return ""
        return (
            "WARNING: this gateway requires an API key, but there are none: every request to the "
            "API is refused with 401. Add a key to --api-key-file and send SIGHUP."
        )

    @property
    def classes(self) -> frozenset[Priority]:
        return frozenset(key.priority for key in self.keys)

    @property
    def given_names(self) -> list[str]:
        """Names chosen by an operator, in the order of the file."""
        return [key.name for key in self.keys if key.named]

    @property
    def depths(self) -> dict[str, int]:
        """Default speculation depths by key name."""
        return {key.name: key.depth for key in self.keys if key.depth is not None}


class KeyEntry(BaseModel):
    """One entry of the key file."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=KEY_NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    priority: Literal["high", "normal", "low"] | None = None
    weight: Annotated[float, Field(ge=0.01, le=1000)] = 1.0
    models: Annotated[list[str], Field(min_length=1)] | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    images_per_minute: Limit | None = None
    concurrency: Limit | None = None
    depth: Annotated[int, Field(ge=0)] | None = None
    expires: datetime | date | None = None
    admin: bool = False

    def key(self) -> ApiKey:
        return ApiKey(
            self.name,
            bytes.fromhex(self.sha256),
            priority=self._class(),
            weight=self.weight,
            models=None if self.models is None else frozenset(self.models),
            concurrency=self.concurrency,
            quota=self._quota(),
            depth=self.depth,
            expires=None if self.expires is None else _to_timestamp(self.expires),
            admin=self.admin,
        )

    def _class(self) -> Priority:
        if self.priority is not None:
            return Priority[self.priority.upper()]
        return Priority.OPERATOR if self.admin else Priority.NORMAL

    def _quota(self) -> KeyQuota | None:
        limits = (self.requests_per_minute, self.tokens_per_minute, self.images_per_minute)
        if limits == (None, None, None):
            return None
        requests, tokens, images = limits
        return KeyQuota(self.name, requests, tokens, images=images)


class KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[KeyEntry]


def load_keys(
    path: str | None, plain_keys: Iterable[str] = (), admin: str | None = None
) -> KeyRing:
    """Load the keys of the file, then those given in plain text. Raises ConfigError.

    A file without keys still requires one, so every API request is refused.
    """
    keys = [] if path is None else _read_file(Path(path))
    keys += [
        _make_unnamed_key(key, f"API key {number}") for number, key in enumerate(plain_keys, 1)
    ]
    if admin is not None:
        keys.append(replace(_make_unnamed_key(admin, "the admin's API key"), **ADMIN))
    _check_unique(keys)
    return KeyRing(tuple(keys), required=path is not None or bool(keys))


def _make_unnamed_key(key: str, source: str) -> ApiKey:
    """Make a key named after its hash, so that its name does not depend on its position."""
    if len(key) < MIN_LENGTH:
        raise ConfigError(
            f"an API key must have at least {MIN_LENGTH} characters, {source} has {len(key)}; "
            "`eaglegate key NAME` makes one"
        )
    digest = hash_key(key)
    return ApiKey(f"key-{digest.hex()[:NAME_DIGITS]}", digest, named=False)


def _read_file(path: Path) -> list[ApiKey]:
    try:
        content = read_yaml(path)
        content = {"keys": content} if isinstance(content, list) else content
        entries = KeyFile.model_validate(content).keys
    except ValidationError as error:
        raise ConfigError(f"--api-key-file {path}: {_describe_problem(error)}") from None
    except (OSError, InvalidYaml) as error:
        raise ConfigError(f"--api-key-file {path} cannot be read: {error}") from None
    return [entry.key() for entry in entries]


def _describe_problem(error: ValidationError) -> str:
    """Describe the first problem of a key file. Values that may be secrets are left out."""
    problem = error.errors(include_url=False)[0]
    if not problem["loc"]:
        return "it must be a list of keys, as `eaglegate key NAME` writes them"
    location = ".".join(str(part) for part in problem["loc"] if part not in DATES)
    rule = _describe_rule(problem)
    is_secret = not SECRET_FIELDS.isdisjoint(problem["loc"]) or problem["type"] in UNSHOWN
    suffix = "" if is_secret else f"; given {str(problem['input'])[:60]!r}"
    return f"{location}: {rule}{suffix}"


DATES = ("datetime", "date")
"""Parts of a place that pydantic adds for the two types of ``expires``."""
PATTERNS = {
    "name": "1 to 64 letters, digits, dots, underscores or hyphens",
    "sha256": "64 hexadecimal digits, as `eaglegate key NAME` writes them",
}
RULES = {
    "missing": "is missing",
    "extra_forbidden": f"is not a field; the fields are {', '.join(KeyEntry.model_fields)}",
    "string_pattern_mismatch": "must be {pattern}",
    "string_type": "must be text",
    "list_type": "must be a list",
    "model_type": "must be an entry with a name and a sha256",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than_equal": "must be {le:g} or less",
    "too_short": "must have at least one item",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}
"""Rules in the words of a key file, by pydantic's type of a problem."""


def _describe_rule(problem: Mapping[str, Any]) -> str:
    kind, name = problem["type"], problem["loc"][-1]
    if kind.startswith(("int_", "float_")):
        return "must be a number" if name == "weight" else "must be a whole number"
    if "expires" in problem["loc"]:
        return "must be a date or a time, such as 2027-01-31"
    if kind not in RULES:
        return str(problem["msg"])
    context = {**problem.get("ctx", {}), "pattern": PATTERNS.get(name)}
    return RULES[kind].format_map(context)


def describe_names(keys: Collection[str]) -> str:
    """Describe the named keys for an error about a name that belongs to no key."""
    return f"the keys are {', '.join(sorted(keys))}" if keys else "name keys in an --api-key-file"


def _check_unique(keys: list[ApiKey]) -> None:
    for kind, values in (
        ("name", [key.name for key in keys]),
        ("hash", [key.digest.hex() for key in keys]),
    ):
        twins = {value for value in values if values.count(value) > 1}
        if twins:
            raise ConfigError(f"two API keys have the same {kind}: {', '.join(sorted(twins))}")


def _to_timestamp(expires: datetime | date) -> float:
    """Convert to Unix time. A date means the end of that day; a time without a zone is UTC."""
    if not isinstance(expires, datetime):
        expires = datetime.combine(expires, datetime.min.time()) + timedelta(days=1)
    return (expires if expires.tzinfo else expires.replace(tzinfo=UTC)).timestamp()
