"""Operator endpoints under /admin: status, speculation, draft, reload."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from eaglegate.engine.errors import DraftRefused, DraftSwapBusy, EngineDead, EngineFailed
from eaglegate.engine.speculation.drafts.swap import DraftManager
from eaglegate.engine.speculation.drafts.versions import DraftSwap
from eaglegate.engine.speculation.policy.policy import FlagMode, SpeculationFlag, SpeculationRules
from eaglegate.engine.supervision.policy import AppliedDepth
from eaglegate.server.apis.shared.fields import RequestModel
from eaglegate.server.apis.shared.gateway import Controls, Gateway
from eaglegate.server.apis.shared.openapi import describe_body
from eaglegate.server.apis.shared.request import read_model
from eaglegate.server.errors import ConfigError, Conflict, GatewayError, InvalidRequest, Unavailable
from eaglegate.server.generation.pipeline import Pipeline

Depth = Annotated[int, Field(ge=0)]


class AdminModel(RequestModel):
    """Request of an operator. Unknown fields are errors, so that a misspelled setting is not
    lost.
    """

    model_config = ConfigDict(extra="forbid")


class FlagModel(AdminModel):
    """Speculation flag. ``share``, ``sticky`` and ``salt`` apply only to mode share."""

    mode: Literal["on", "off", "share"] = "on"
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    sticky: Literal["key", "request"] = "key"
    salt: Annotated[str, Field(max_length=64)] = ""

    def flag(self) -> SpeculationFlag:
        return SpeculationFlag(FlagMode(self.mode), self.share, self.sticky, self.salt)


class RulesModel(AdminModel):
    """The complete set of rules. A missing field is reset to its default."""

    flag: FlagModel = FlagModel()
    workload_flags: dict[str, FlagModel] = Field(default_factory=dict)
    depth: Depth | None = None
    workload_depths: dict[str, Depth] = Field(default_factory=dict)
    lookup: Depth | None = None
    """Longest lookup of every request, for an engine with --lookup; 0 switches lookups off."""

    def rules(self) -> SpeculationRules:
        return SpeculationRules(
            flag=self.flag.flag(),
            workload_flags={name: flag.flag() for name, flag in self.workload_flags.items()},
            depth=self.depth,
            workload_depths=self.workload_depths,
            lookup=self.lookup,
        )


class SpeculationModel(RulesModel):
    """The rules, including those of keys, and two further controls."""

    key_depths: dict[str, Depth] = Field(default_factory=dict)
    bound: Depth | None = None
    """Maximum depth of every request, including running ones; null leaves it unchanged."""
    planner: Depth | Literal["auto"] | None = None
    """Fixes the planner of ``--depth auto`` at a depth. "auto" lets it choose again; null leaves it
    unchanged.
    """

    def rules(self) -> SpeculationRules:
        return replace(super().rules(), key_depths=self.key_depths)


class DraftModel(AdminModel):
    """A draft to serve. A trial is not promoted: a restarted engine serves the promoted draft."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    trial: bool = False


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(prefix="/admin")
    _add_operation(routes, gateway)
    _add_speculation(routes, gateway)
    _add_drafts(routes, gateway)
    return routes


def _add_operation(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/status")
    async def status() -> dict[str, Any]:
        """Return the running and queued requests, and the limits."""
        admission = gateway.require().admission
        rate = admission.rate.per_s
        return {
            "state": gateway.state,
            "running_sequences": admission.running,
            "queued_requests": admission.queued,
            "queued_prompt_tokens": admission.queued_tokens,
            "requests_inside": admission.num_in_flight,
            "by_key": admission.count_by_key(),
            "served_per_s": None if rate is None else round(rate, 3),
            "tasks": len(asyncio.all_tasks()),
            "bounds": asdict(admission.bounds),
            "keys": [key.name for key in gateway.keys.keys],
            "workers": [asdict(worker) for worker in gateway.workers()],
            "engine_losses": [asdict(loss) for loss in gateway.losses()],
        }

    @routes.post("/reload")
    async def reload() -> dict[str, Any]:
        """Reload keys and limits. An error leaves everything unchanged."""
        try:
            return await require_controls(gateway).reload()
        except ConfigError as error:
            raise InvalidRequest(
                f"The settings were not reloaded: {error}", code="bad_settings"
            ) from None


def _add_speculation(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/speculation")
    async def speculation() -> dict[str, Any]:
        """Return the rules in force, the draft's cost in prefix cache, and the depth planner's
        estimates.
        """
        pipeline = gateway.require()
        rules = asdict(pipeline.policy.rules)
        if cost := pipeline.info.details.get("prefix cache"):
            rules["prefix_cache"] = cost
        planner = gateway.controls.planner if gateway.controls else None
        planning = await planner.describe_planning() if planner else {}
        if not (planner and planning):
            return rules
        return rules | {"planner": {**planning, "slices": await planner.describe_slices()}}

    @routes.put("/speculation", openapi_extra=describe_body(SpeculationModel))
    async def set_speculation(request: Request) -> dict[str, Any]:
        pipeline = gateway.require()
        body = await read_model(request, gateway, SpeculationModel)
        rules = body.rules()
        check_rules(rules, pipeline)
        _check_operation(body, pipeline, gateway)
        out: dict[str, Any] = {}
        # The planner first, since this can fail; an engine with a planner can also be bounded.
        if body.planner is not None:
            await _freeze_planner(gateway, None if body.planner == "auto" else body.planner)
            out["planner"] = body.planner
        if body.bound is not None:
            state = await _bound_depth(gateway, body.bound)
            out |= {"bound": state.bound, "bound_pending": state.pending}
        require_controls(gateway)
        pipeline.policy.set_rules(rules)
        return asdict(rules) | out

    @routes.post("/speculation/release")
    async def release_depths() -> dict[str, Any]:
        """Release the depths that were blocked because their drafts crashed the engine."""
        holds = require_controls(gateway).release_drafts()
        if not holds:
            raise Conflict("No depth is held off.", code="nothing_held")
        return {"released": [asdict(hold) for hold in holds]}


def _add_drafts(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/draft")
    async def draft() -> dict[str, Any]:
        """Return the serving, promoted, previous and configured drafts, and the last swaps."""
        return require_drafts(gateway).describe()

    @routes.post("/draft", openapi_extra=describe_body(DraftModel))
    async def swap_draft(request: Request) -> dict[str, Any]:
        """Load another draft into the running engine, between two steps."""
        gateway.require()
        body = await read_model(request, gateway, DraftModel)
        drafts = require_drafts(gateway)
        await asyncio.to_thread(check_path, body.path)
        return await _change_draft(drafts, drafts.swap(body.path, trial=body.trial))

    @routes.post("/draft/rollback")
    async def roll_back_draft() -> dict[str, Any]:
        """End a trial, or return to the previously promoted draft."""
        gateway.require()
        drafts = require_drafts(gateway)
        return await _change_draft(drafts, drafts.rollback())


def require_drafts(gateway: Gateway) -> DraftManager:
    drafts = require_controls(gateway).drafts
    if drafts is None:
        workers = ", ".join(worker.name for worker in gateway.workers())
        advice = f"Exchange it on the workers: {workers}" if workers else "Start it with a draft"
        raise Conflict(f"No engine of this gateway has a draft model. {advice}.", code="no_draft")
    return drafts


async def _change_draft(drafts: DraftManager, change: Awaitable[DraftSwap]) -> dict[str, Any]:
    with convert_draft_errors():
        swap = await change
    return {"swap": asdict(swap), **drafts.describe()}


def check_path(path: str) -> None:
    """Raise InvalidRequest if the file system rejects the path, for example because it is too
    long.
    """
    try:
        Path(path).expanduser().exists()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(
            f"No draft can be read from '{path[:80]}': {reason}.",
            param="path",
            code="draft_refused",
        ) from None


@contextmanager
def convert_draft_errors() -> Iterator[None]:
    """Convert errors of drafts to GatewayErrors."""
    try:
        yield
    except DraftRefused as error:
        raise InvalidRequest(str(error), param="path", code="draft_refused") from None
    except DraftSwapBusy as error:
        raise Conflict(str(error), code="draft_swap_running") from None
    except EngineFailed as error:
        raise GatewayError(str(error), code="draft_swap_failed") from None
    except EngineDead as error:
        raise Unavailable(
            f"{error} It is being restarted with the promoted draft.",
            code="engine_dead",
            retry_after_s=5,
        ) from None


async def _bound_depth(gateway: Gateway, depth: int) -> AppliedDepth:
    try:
        return await require_controls(gateway).bound_depth(depth)
    except ValueError as error:
        raise InvalidRequest(f"'bound' cannot be set: {error}", param="bound") from None


async def _freeze_planner(gateway: Gateway, depth: int | None) -> None:
    planner = require_controls(gateway).planner
    if planner is None or not await planner.freeze_planning(depth):
        raise InvalidRequest(
            "'planner' needs an engine that plans its depth; start the gateway with --depth auto.",
            param="planner",
        )


def require_controls(gateway: Gateway) -> Controls:
    if gateway.controls is None:
        raise Unavailable("This gateway has no admin controls.")
    return gateway.controls


def check_rules(rules: SpeculationRules, pipeline: Pipeline, prefix: str = "") -> None:
    """Raise InvalidRequest for unknown workloads, and for depths and lookups that the engine cannot
    serve.
    """
    workloads = pipeline.served_model.workloads
    _check_names(f"{prefix}workload_flags", rules.workload_flags, workloads)
    _check_names(f"{prefix}workload_depths", rules.workload_depths, workloads)
    depths = {f"workload_depths.{name}": limit for name, limit in rules.workload_depths.items()}
    depths |= {f"key_depths.{name}": limit for name, limit in rules.key_depths.items()}
    for name, depth in ({"depth": rules.depth} | depths).items():
        _check_depth(prefix + name, depth, pipeline)
        if (
            depth not in (None, pipeline.served_model.depth)
            and not pipeline.served_model.depth_per_request
        ):
            raise InvalidRequest(
                f"'{prefix}{name}' cannot be set here: the workers draft "
                f"{pipeline.served_model.depth} tokens for every request. Start them with "
                "--scheduler-cls eaglegate.engine.Scheduler.",
                param=prefix + name,
            )
    _check_lookup(f"{prefix}lookup", rules.lookup, pipeline)


def _check_lookup(param: str, width: int | None, pipeline: Pipeline) -> None:
    limit = pipeline.info.speculation.lookup
    if width is not None and not limit:
        raise InvalidRequest(
            f"'{param}' cannot be set here: the engine has no lookups. Start the gateway with "
            "--lookup N.",
            param=param,
        )
    if width is not None and width > limit:
        raise InvalidRequest(
            f"'{param}' must be at most the engine's longest lookup, {limit}; given {width}.",
            param=param,
        )


def _check_operation(body: SpeculationModel, pipeline: Pipeline, gateway: Gateway) -> None:
    """Check the fields that are not rules. Raises InvalidRequest."""
    if gateway.keys:
        _check_names("key_depths", body.key_depths, [key.name for key in gateway.keys.keys])
    _check_depth("bound", body.bound, pipeline)
    _check_depth("planner", None if body.planner == "auto" else body.planner, pipeline)


def _check_depth(param: str, depth: int | None, pipeline: Pipeline) -> None:
    if depth is not None and depth > pipeline.served_model.depth:
        raise InvalidRequest(
            f"'{param}' must be at most the engine's depth, {pipeline.served_model.depth}; "
            f"given {depth}.",
            param=param,
        )


def _check_names(param: str, names: Collection[str], registry: Collection[str]) -> None:
    unknown = sorted(set(names) - set(registry))
    if unknown:
        raise InvalidRequest(
            f"'{param}' contains unknown names: {', '.join(unknown)}. Known: "
            f"{', '.join(sorted(registry))}.",
            param=param,
        )
