"""Startup check of the model's own sampling defaults (generation_config.json)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from eaglegate.server.errors import ConfigError

RULES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("0 or more", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": ("a whole number from -1", lambda value: value >= -1 and value == int(value)),
    "min_p": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "repetition_penalty": ("above 0", lambda value: value > 0),
    "max_tokens": ("a whole number from 1", lambda value: value >= 1 and value == int(value)),
}
IN_FILE = {"max_tokens": "max_new_tokens"}


def check_default_sampling(defaults: Mapping[str, object]) -> None:
    """Raise ConfigError for invalid defaults, which would break requests that set no values."""
    problems = [
        f"'{IN_FILE.get(name, name)}' must be {rule}; given {defaults[name]!r}"
        for name, (rule, condition) in RULES.items()
        if name in defaults and not _fits(defaults[name], condition)
    ]
    if problems:
        raise ConfigError(
            f"the model's generation_config.json cannot be used: {'; '.join(problems)}. Correct "
            "the file, or start with --generation-config vllm, which leaves it unread."
        )


def _fits(value: object, condition: Callable[[float], bool]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and condition(value)  # type: ignore[arg-type]
