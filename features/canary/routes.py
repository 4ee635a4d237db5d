"""Operator endpoints under /admin/canary: start, show and stop a canary, and release a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from eaglegate.engine.speculation.policy.policy import SpeculationRules
from eaglegate.features.canary.changes import CanaryChanges
from eaglegate.features.canary.outcomes import CanaryBusy, ChangeRefused
from eaglegate.features.canary.runner import CanaryRunner
from eaglegate.server.apis.operations.admin import (
    AdminModel,
    RulesModel,
    check_path,
    check_rules,
    convert_draft_errors,
    require_drafts,
)
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.openapi import describe_body
from eaglegate.server.apis.shared.request import read_model
from eaglegate.server.errors import Conflict, InvalidRequest, Unavailable
from eaglegate.server.generation.pipeline import Pipeline

if TYPE_CHECKING:
    from eaglegate.features.canary.arms import CanaryChange
    from eaglegate.features.canary.canary import CanaryPlan
    from eaglegate.features.canary.feature import CanaryFeature


class CanaryModel(AdminModel):
    """A draft, rules or a worker to try on live traffic, and the rules of the decision."""

    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    speculation: RulesModel | None = None
    worker: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the sessions, for rules. With null, rules are tried on all requests, in slots."""
    slot_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    max_s: Annotated[float, Field(ge=2, le=7 * 86400)] = 3600.0
    min_blocks: Annotated[int, Field(ge=3)] = 6
    min_sessions: Annotated[int, Field(ge=2)] = 20
    alpha: Annotated[float, Field(gt=0, le=0.2)] = 0.05
    slice_margin: Annotated[float, Field(ge=0, lt=1)] | None = None
    primary: Literal["acceptance", "tpot"] | None = None
    """Metric that must improve. The default is the time per output token for rules, and the
    acceptance length otherwise.
    """

    def plan(self) -> CanaryPlan:
        """Return the plan. The default margin depends on the primary metric."""
        from eaglegate.features.canary.canary import CanaryPlan
        from eaglegate.features.canary.sequential import CanaryRules

        fields = self.model_dump(include={"min_blocks", "min_sessions", "alpha", "slice_margin"})
        fields["max_blocks"] = CanaryPlan.count_blocks(self.slot_s, self.max_s)
        rules = {name: value for name, value in fields.items() if value is not None}
        primary_metric = self.primary or ("tpot" if self.speculation else "acceptance")
        make = CanaryRules.for_tpot if primary_metric == "tpot" else CanaryRules
        return CanaryPlan(self.slot_s, rules=make(**rules))


class ReleaseModel(AdminModel):
    """A worker that a canary rolled back."""

    worker: Annotated[str, Field(min_length=1, max_length=4096)]


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(prefix="/admin/canary")

    @routes.get("")
    async def canary() -> dict[str, Any]:
        """Return the running canary or the last one, with its evidence; null before the first."""
        return {"canary": _require_canaries(gateway).describe()}

    @routes.post("", openapi_extra=describe_body(CanaryModel))
    async def start_canary(request: Request) -> dict[str, Any]:
        """Try a change on part of the live traffic, then promote it or roll it back."""
        pipeline = gateway.require()
        model = await read_model(request, gateway, CanaryModel)
        canaries = _require_canaries(gateway)
        if model.path is not None:
            await asyncio.to_thread(check_path, model.path)
        with _convert_errors():
            change = _make_change(model, canaries.changes, pipeline, gateway)
            await canaries.start(change, model.plan())
        return {"canary": canaries.describe()}

    @routes.delete("")
    async def stop_canary() -> dict[str, Any]:
        """End the running canary without a verdict. The previous state is restored."""
        canaries = _require_canaries(gateway)
        await canaries.stop()
        return {"canary": canaries.describe()}

    @routes.post("/release", openapi_extra=describe_body(ReleaseModel))
    async def release_worker(request: Request) -> dict[str, Any]:
        """Return a worker that a canary rolled back to normal routing."""
        model = await read_model(request, gateway, ReleaseModel)
        canaries = _require_canaries(gateway)
        with _convert_errors():
            canaries.changes.release(model.worker)
        return {"canary": canaries.describe()}

    return routes


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert errors of canaries and drafts to GatewayErrors."""
    try:
        with convert_draft_errors():
            yield
    except CanaryBusy as error:
        raise Conflict(str(error), code="canary_running") from None
    except ChangeRefused as error:
        raise InvalidRequest(str(error), code="change_refused") from None


def _require_canaries(gateway: Gateway) -> CanaryRunner:
    feature: CanaryFeature | None = gateway.features.get("canary")
    if feature is None:
        raise Unavailable("This gateway runs no canaries.")
    return feature.runner


def _make_change(
    model: CanaryModel, changes: CanaryChanges, pipeline: Pipeline, gateway: Gateway
) -> CanaryChange:
    """Create the requested change. Raises GatewayError."""
    candidates = (model.path, model.speculation, model.worker)
    if len([change for change in candidates if change is not None]) != 1:
        raise InvalidRequest("A canary tries one thing: give 'path', 'speculation' or 'worker'.")
    if model.speculation is not None:
        return _make_rules_change(model, model.speculation.rules(), changes, pipeline)
    if model.share is not None:
        raise InvalidRequest(
            "'share' needs 'speculation': a draft serves all sessions in turn, and a worker serves "
            "the sessions assigned to it.",
            param="share",
        )
    if model.worker is not None:
        return changes.try_worker(model.worker)
    require_drafts(gateway)
    return changes.try_draft(model.path or "")


def _make_rules_change(
    model: CanaryModel, rules: SpeculationRules, changes: CanaryChanges, pipeline: Pipeline
) -> CanaryChange:
    """Create a trial of rules. Raises InvalidRequest."""
    if model.primary == "acceptance":
        raise InvalidRequest(
            "'primary' must be 'tpot' for rules: deeper drafts accept more and may be slower.",
            param="primary",
        )
    check_rules(rules, pipeline, "speculation.")
    return changes.try_rules(rules, model.share)
