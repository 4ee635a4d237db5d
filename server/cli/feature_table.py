"""The table of features, and the settings of those that are on.

This table is all that the gateway knows of them. A row whose folder is absent is left out, so that
a folder of ``features/`` can be removed without a trace.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

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
)
"""The settings of each feature. The engine of a feature wraps those of the features above it: an
audit judges what clients get, so nothing is outside of it.
"""


class FeatureCommand(NamedTuple):
    """A command of a feature, as the usage shows it. ``module`` has its ``main``."""

    usage: str
    summary: str
    module: str


COMMANDS = (
    FeatureCommand(
        "explain [ID]",
        "show where the time of a request went, on a running gateway",
        "eaglegate.features.explanations.command",
    ),
    FeatureCommand(
        "audit ACTION",
        "show audits, replay a violation, release a workload",
        "eaglegate.features.audit.command",
    ),
    FeatureCommand(
        "draft COMMAND",
        "show, swap, try or roll back the draft of a running gateway",
        "eaglegate.features.canary.draft_command",
    ),
    FeatureCommand(
        "canary",
        "try a draft, rules or a worker on part of the live traffic",
        "eaglegate.features.canary.draft_command",
    ),
    FeatureCommand(
        "capture",
        "inspect, export, import and delete captured requests",
        "eaglegate.features.capture.command",
    ),
)


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


def list_commands() -> Iterator[FeatureCommand]:
    """Yield the commands of the features that are installed."""
    return (command for command in COMMANDS if exists(command.module))


def find_command(name: str) -> str | None:
    """Return the module of a feature's command; None without such a feature."""
    modules = {command.usage.split()[0]: command.module for command in list_commands()}
    return modules.get(name)


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
