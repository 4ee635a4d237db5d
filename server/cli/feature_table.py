"""The table of features, and the settings of those that are on.

This table is all that the gateway knows of them. A row whose folder is absent is left out, so that
a folder of ``features/`` can be removed without a trace.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from fastapi import APIRouter

from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import read_into

FEATURES = (
    "eaglegate.features.explanations.settings:ExplanationSettings",
    "eaglegate.features.capture.settings:CaptureSettings",
    "eaglegate.features.canary.settings:CanarySettings",
    "eaglegate.features.doctor.settings:DoctorSettings",
    "eaglegate.features.audit.settings:AuditSettings",
    "eaglegate.features.improve.settings:ImproveSettings",
    "eaglegate.features.pacing.settings:PacingSettings",
    "eaglegate.features.lookups.settings:LookupSettings",
)
"""The settings of each feature. The engine of a feature wraps those of the features above it: an
audit judges what clients get, so nothing is outside of it.
"""


COMMANDS: Mapping[str, tuple[str, str]] = {
    "explain [ID]": (
        "eaglegate.features.explanations.command",
        "show where the time of a request went, on a running gateway",
    ),
    "audit ACTION": (
        "eaglegate.features.audit.command",
        "show audits, replay a violation, release a workload",
    ),
    "draft COMMAND": (
        "eaglegate.features.canary.draft_command",
        "show, swap, try or roll back the draft of a running gateway",
    ),
    "canary": (
        "eaglegate.features.canary.draft_command",
        "try a draft, rules or a worker on part of the live traffic",
    ),
    "capture": (
        "eaglegate.features.capture.command",
        "inspect, export, import and delete captured requests",
    ),
}
"""The module with the ``main`` of each feature's command, and its purpose, by its usage."""


@cache
def list_settings_classes() -> tuple[type[FeatureSettings], ...]:
    return tuple(load(place) for place in FEATURES if exists(place.partition(":")[0]))


def read_features(namespace: argparse.Namespace) -> tuple[FeatureSettings, ...]:
    """Return the settings of the features that are on. Raises ConfigError."""
    settings = [read_into(kind, namespace) for kind in list_settings_classes()]
    return tuple(feature for feature in settings if feature.is_on)


def list_metric_groups() -> Iterator[Any]:
    """Yield the metric groups of every feature, on or off, for the documentation."""
    for module in _list_modules("metrics"):
        yield from module.GROUPS


def list_routers(gateway: Any) -> Iterator[APIRouter]:
    """Yield the routes of every feature. Those of a feature that is off say how to switch it on."""
    for module in _list_modules("routes"):
        yield module.router(gateway)


def _list_modules(name: str) -> Iterator[ModuleType]:
    """Import the module ``name`` of every feature that has one."""
    for place in FEATURES:
        module = place.partition(":")[0].removesuffix("settings") + name
        if exists(module):
            yield import_module(module)


def list_commands() -> dict[str, str]:
    """Return the purposes of the installed features' commands by usage."""
    return {usage: purpose for usage, (module, purpose) in COMMANDS.items() if exists(module)}


def find_command(name: str) -> str | None:
    """Return the module of a feature's command; None without such a feature."""
    return next((COMMANDS[usage][0] for usage in list_commands() if usage.split()[0] == name), None)


def exists(module: str) -> bool:
    """Return True if the module can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its folder is absent
        return False


def load(place: str) -> Any:
    """Import ``module:Class``."""
    module, name = place.split(":")
    return getattr(import_module(module), name)
