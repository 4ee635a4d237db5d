"""The improvement loop as a process of its own, beside the gateway."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path

from eaglegate.engine.types import EngineInfo
from eaglegate.features.improve.settings import ImproveSettings
from eaglegate.server.cli.feature import ActiveFeature, Core
from eaglegate.server.errors import ConfigError


class ImproveFeature(ActiveFeature):
    """Runs the loop while the gateway serves."""

    def __init__(self, core: Core, settings: ImproveSettings) -> None:
        """Raises ConfigError."""
        if core.backend.drafts is None:
            raise ConfigError("--improve needs a draft in this process; start it on a worker")
        path = Path(settings.improve or "").expanduser()
        try:
            # By name, because the gateway imports the lab only when an operator requests it.
            lab = import_module("eaglegate.lab.improve.process")
            self._process = lab.open_process(path, core.settings.admin_api_key)
        except (ValueError, ModuleNotFoundError) as error:
            raise ConfigError(f"--improve: {error}") from None
        self._url = core.operator_url
        self._started = asyncio.Event()

    def start(self, info: EngineInfo) -> None:  # noqa: ARG002
        self._started.set()

    async def run(self) -> None:
        await self._started.wait()
        await self._process.run(self._url)
