"""Operator endpoints under /admin/audit: state of the audits, release of workloads, and replay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from eaglegate.engine.errors import EngineError, RequestRejected
from eaglegate.server.apis.operations.admin import AdminModel
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.openapi import describe_body
from eaglegate.server.apis.shared.request import read_body, read_model
from eaglegate.server.apis.shared.route import CallerOf
from eaglegate.server.errors import Conflict, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from eaglegate.features.audit.auditor import Auditor
    from eaglegate.features.audit.feature import AuditFeature


class HeldModel(AdminModel):
    """A workload whose speculation an audit has turned off, or a worker with violated answers."""

    workload: Annotated[str, Field(min_length=1, max_length=256)]


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(prefix="/admin/audit")

    @routes.get("")
    async def audit() -> dict[str, Any]:
        """Return what audits have held, the evidence so far, and the last audits."""
        return dict(_require_auditor(gateway).describe())

    @routes.post("/release", openapi_extra=describe_body(HeldModel))
    async def release_workload(request: Request) -> dict[str, Any]:
        """Turn speculation back on for a workload, or end the alarm and the hold of a worker."""
        model = await read_model(request, gateway, HeldModel)
        auditor = _require_auditor(gateway)
        if not auditor.release(model.workload):
            names = ", ".join(auditor.list_held()) or "none"
            raise InvalidRequest(
                f"'workload' must be one that an audit holds ({names}); given "
                f"'{model.workload[:80]}'.",
                param="workload",
            )
        return dict(auditor.describe())

    @routes.post("/replay")
    async def replay_violation(request: Request, caller: CallerOf) -> dict[str, Any]:
        """Score the answer in a violation's file again, and generate it with and without drafts."""
        gateway.require()
        body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
        try:
            return await _require_auditor(gateway).replay(json.loads(body))
        except (ValueError, RequestRejected) as error:
            raise InvalidRequest(str(error), code="bad_evidence") from None
        except EngineError as error:
            raise Unavailable(str(error), retry_after_s=5) from None

    return routes


def _require_auditor(gateway: Gateway) -> Auditor:
    feature: AuditFeature | None = gateway.features.get("audit")
    if feature is None:
        raise Conflict(
            "Nothing is audited. Start the gateway with --audit-share.", code="no_audits"
        )
    return feature.auditor
