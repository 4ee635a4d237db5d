"""``/eaglegate/speculation`` of a pod, an endpoint plug-in of vLLM's API server.

It is off unless VLLM_PLUGINS names ``eaglegate``. vLLM asks no key for it, as for ``/metrics``, so
it only shows; ``EAGLEGATE_BOUND_ROUTE=1`` adds the bound.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from eaglegate.features.pod.engine.settings import PodSettings

PATH = "/eaglegate/speculation"
MAX_RECENT = 256


class Bound(BaseModel, extra="forbid"):
    bound: int = Field(ge=0)


class PodRoutes:
    """See ``vllm.plugins.endpoint_plugins.interface.EndpointPlugin``."""

    name = "eaglegate"
    required_tasks = None

    def __init__(self) -> None:
        self._core: Any = None
        self._may_bound = False

    def attach_router(self, app: FastAPI) -> None:
        @app.get(PATH)
        async def speculation(recent: int = 0) -> list[dict[str, Any]]:
            """Describe the planner of each data-parallel rank, and its newest steps."""
            return await self._ask("describe_planning", max(0, min(recent, MAX_RECENT)))

        @app.put(PATH)
        async def bound_depth(body: Bound) -> dict[str, Any]:
            """Bound every request's depth from the next step on."""
            if not self._may_bound:
                raise HTTPException(403, "EAGLEGATE_BOUND_ROUTE=1 allows this")
            return {"bound": await self._ask("set_depth", body.bound)}

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ARG002
        """Called with the engine, before the first request."""
        self._core = getattr(engine_client, "engine_core", None)
        if engine_client is not None:
            config = engine_client.vllm_config.additional_config
            self._may_bound = PodSettings.read(config).bound_route

    async def _ask(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of every rank's engine between two steps."""
        if self._core is None:
            raise HTTPException(503, "This server has no engine.")
        engines = getattr(self._core, "core_engines", ())
        if len(engines) < 2:
            return [await self._core.call_utility_async(method, *arguments)]
        call = self._core._call_utility_async
        return [await call(method, *arguments, engine=engine) for engine in engines]
