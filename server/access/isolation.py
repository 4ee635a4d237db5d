"""Isolation of the engine's prefix cache between tenants.

A prompt that is already cached is answered sooner, so the time to the first token reveals whether
another tenant has sent it. Each named key therefore has a cache of its own: its name is part of the
salt of the engine's block hashes. Keys given in plain text have no names and share one cache.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.keys import describe_names
from eaglegate.server.errors import ConfigError

ALL = "all"


@dataclass(frozen=True, slots=True)
class CacheIsolation:
    """Cache isolation between keys. ``shared`` has the names of keys that share one cache, or
    ``all``.
    """

    shared: frozenset[str] = frozenset()

    def salt(self, key: ApiKey | None, client_salt: str | None) -> str | None:
        """Return the salt of a request; None means the common cache.

        ``client_salt`` is the client's own salt. It subdivides the cache of the client's key, or
        the common one, and never leads into another key's cache: each kind of salt has a prefix of
        its own, and key names contain no colon.
        """
        if key is None or not key.named:
            return client_salt and f"common:{client_salt}"
        if ALL in self.shared or key.name in self.shared:
            return client_salt and f"shared:{client_salt}"
        return f"key:{key.name}:{client_salt or ''}"


def check_names(shared_names: Collection[str], keys: Collection[str]) -> None:
    """Raise ConfigError for a name that belongs to no key, such as a misspelt one."""
    for name in shared_names:
        if name != ALL and name not in keys:
            raise ConfigError(
                f"--shared-prefix-cache: there is no API key '{name}'; {describe_names(keys)}, "
                f"and '{ALL}' means every key"
            )
