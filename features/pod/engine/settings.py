"""Settings of a pod: the entry ``eaglegate`` of ``--additional-config``, or the environment.

The names are those of the gateway's flags: ``{"eaglegate": {"depth": "3"}}`` or
``EAGLEGATE_DEPTH=3``. The entry takes precedence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

KEY = "eaglegate"
"""Key in vLLM's ``additional_config``."""
PREFIX = "EAGLEGATE_"
AUTO = "auto"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Settings of a pod. Raises ValueError for values of another form."""

    depth: str = AUTO
    """``auto``, or the depth of every request without its own."""
    lookup: int = 0
    """Longest lookup; 0 for none."""
    preflight: bool = True
    """Refuse a draft that does not fit, before the weights are loaded."""
    strict_advisories: bool = False
    """Refuse to start where an advisory applies."""
    bound_route: bool = False
    """Let ``PUT /eaglegate/speculation`` bound the depth."""

    @classmethod
    def read(
        cls, additional_config: Any, environment: Mapping[str, str] = os.environ
    ) -> PodSettings:
        """Read the settings. Raises ValueError with the name of one that is wrong or unknown."""
        entry = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(entry, Mapping):
            raise ValueError(f'additional_config: "{KEY}" must be an object, given {entry!r}')
        names = {field.name: field for field in fields(cls)}
        if unknown := sorted(entry.keys() - names.keys()):
            raise ValueError(f'additional_config: "{KEY}" has no {unknown[0]!r}: use {[*names]}')
        values = {}
        for name, field in names.items():
            value = entry.get(name, environment.get(f"{PREFIX}{name.upper()}"))
            if value is not None:
                values[name] = _convert(name, str(field.type), value)
        return cls(**values)

    def __post_init__(self) -> None:
        if self.depth != AUTO and not self.depth.isdecimal():
            raise ValueError(f"eaglegate: depth must be a number or auto, given {self.depth!r}")


def _convert(name: str, kind: str, value: Any) -> Any:
    text = str(value).strip().lower()
    if kind == "str":
        return text
    if kind == "int" and text.isdecimal():
        return int(text)
    if kind == "bool" and text in TRUE + FALSE:
        return text in TRUE
    raise ValueError(f"eaglegate: {name} must be {kind}, given {value!r}")
