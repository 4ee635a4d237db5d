"""Whether vLLM's own functions still take what our code beside them expects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def find_changed(expected: Mapping[Callable[..., Any], str]) -> list[str]:
    """The names of functions whose parameters are not the ones given, separated by spaces."""
    return [
        function.__qualname__
        for function, parameters in expected.items()
        if list(inspect.signature(function).parameters) != parameters.split()
    ]
