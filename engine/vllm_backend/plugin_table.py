"""The table of plug-ins: what a step may carry besides its plan and its account.

A plug-in is the part in the engine of a folder of ``features/``. A row whose folder is absent is
left out, so that the folder can be removed. docs/architecture.md describes the modules of a
plug-in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PLUGINS = (
    "eaglegate.features.lookups.engine",
    "eaglegate.features.fair_share.engine",
    "eaglegate.features.prefix_cache.engine",
    "eaglegate.features.audit.engine",
    "eaglegate.features.pod.engine",
)
"""Packages, in the order in which their hooks are called: what widens a step comes before what
limits it."""
MORE_PLUGINS = "eaglegate_plugins"
"""Key in vLLM's ``additional_config``: modules with more step plug-ins, of anybody."""


def load_plugins(module: str) -> Iterator[ModuleType]:
    """Import ``module`` of every plug-in that has one."""
    for package in PLUGINS:
        name = f"{package}.{module}"
        try:
            is_present = find_spec(name) is not None
        except ModuleNotFoundError:  # its folder is absent
            continue
        if is_present:
            yield import_module(name)


def load_step_plugins(additional_config: Any) -> Iterator[ModuleType]:
    """Import the step plug-ins of the table, and those that ``additional_config`` names."""
    yield from load_plugins("step_plugin")
    if isinstance(additional_config, Mapping):
        yield from map(import_module, additional_config.get(MORE_PLUGINS, ()))
