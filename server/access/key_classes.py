"""Step classes of API keys: ``--key-class NAME=latency[:30ms]`` and ``NAME=batch[:WEIGHT]``.

A key without a class is ``batch`` with weight 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.keys import KeyRing, describe_names
from eaglegate.server.errors import ConfigError

CLASS = re.compile(
    r"(?P<name>[^=]+)="
    r"(?:(?P<latency>latency)(?::(?P<ms>\d+(?:\.\d+)?)ms)?"
    r"|batch(?::(?P<weight>\d+(?:\.\d+)?))?)"
)
LIGHTEST, HEAVIEST = 0.01, 1000.0


def assign_classes(ring: KeyRing, classes: Iterable[str]) -> KeyRing:
    """Return the ring with the classes of ``--key-class`` applied. Raises ConfigError."""
    keys = {key.name: key for key in ring.keys}
    names: set[str] = set()
    for text in classes:
        name, new_key = _apply(text, keys)
        if name in names:
            raise ConfigError(
                f"--key-class {text!r}: the API key '{name}' has two classes; give one"
            )
        names.add(name)
        keys[name] = new_key
    return replace(ring, keys=tuple(keys[key.name] for key in ring.keys))


def _apply(text: str, keys: dict[str, ApiKey]) -> tuple[str, ApiKey]:
    match = CLASS.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--key-class {text!r}: write NAME=latency, NAME=latency:30ms (the milliseconds per "
            "output token to keep), NAME=batch or NAME=batch:WEIGHT"
        )
    name = match["name"]
    key = keys.get(name)
    if key is None:
        raise ConfigError(
            f"--key-class {text!r}: there is no API key '{name}'; {describe_names(keys)}"
        )
    if match["latency"]:
        # Latency keys also go first in admission: waiting there would break their objective.
        priority = min(key.priority, Priority.HIGH)
        return name, replace(key, latency_ms=float(match["ms"] or 0), priority=priority)
    weight = float(match["weight"] or 1)
    if not LIGHTEST <= weight <= HEAVIEST:
        raise ConfigError(
            f"--key-class {text!r}: a weight must be between {LIGHTEST:g} and {HEAVIEST:g}"
        )
    return name, replace(key, step_weight=weight)
