"""Whose prompts may share the engine's prefix cache.

A prompt that another tenant has sent before is answered sooner, so the time to the first token
tells whether it was sent. Each named key therefore has a cache of its own: its name goes into the
salt of the engine's block hashes. Keys given in plain text have no names and share one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from eaglegate.server.access.caller import ApiKey
from eaglegate.server.errors import ConfigError

ALL = "all"


@dataclass(frozen=True, slots=True)
class CacheIsolation:
    """``shared``: names of keys that share one cache, or ``all``."""

    shared: frozenset[str] = frozenset()

    def salt(self, key: ApiKey | None, given: str | None) -> str | None:
        """The salt of a request: None shares the common cache.

        ``given`` is the client's own. It divides the cache of its key further and never leads into
        another's: names of keys have no colon.
        """
        if key is None or not key.named:
            return given
        if ALL in self.shared or key.name in self.shared:
            return given and f"shared:{given}"
        return f"key:{key.name}:{given or ''}"


def check_names(shared: Collection[str], keys: Collection[str]) -> None:
    """Raises ConfigError for a name that no key has: its misspelt key would share nothing."""
    for name in shared:
        if name != ALL and name not in keys:
            raise ConfigError(
                f"--shared-prefix-cache: there is no API key '{name}'; the keys are "
                f"{', '.join(sorted(keys)) or 'none'}, and '{ALL}' means every key"
            )
