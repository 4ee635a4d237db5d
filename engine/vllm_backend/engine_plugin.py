"""Engine plug-ins: what a plug-in adds to an engine in the gateway's process."""

from __future__ import annotations

from functools import cache
from typing import Any

from vllm.config import VllmConfig

from eaglegate.engine.types import EngineInfo
from eaglegate.engine.vllm_backend.plugin_table import load_plugins


class EnginePlugin:
    """Part of a plug-in in the gateway's process. Every default does nothing."""

    def refuse(self, config: VllmConfig) -> None:
        """Raise ValueError, with what to do, if the plug-in would be wrong with this
        configuration."""

    def describe(self, info: EngineInfo, config: VllmConfig) -> EngineInfo:  # noqa: ARG002
        """Return the description of an engine with the plug-in's part."""
        return info

    def offer(self, engine: Any) -> object | None:  # noqa: ARG002
        """Return an implementation of capabilities (``Engine.capability``) of ``engine``, a
        VllmEngine, or None."""
        return None


@cache
def list_engine_plugins() -> tuple[EnginePlugin, ...]:
    return tuple(module.PLUGIN for module in load_plugins("engine_plugin"))
