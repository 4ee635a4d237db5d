"""Operator endpoint /admin/doctor: causes of drops in acceptance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.errors import Conflict

if TYPE_CHECKING:
    from eaglegate.features.doctor.feature import DoctorFeature


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter(prefix="/admin/doctor")

    @routes.get("")
    async def doctor() -> dict[str, Any]:
        """Return the histories of acceptance, the suspicions, and the last diagnoses."""
        feature: DoctorFeature | None = gateway.features.get("doctor")
        if feature is None:
            raise Conflict(
                "There is no doctor. Start the gateway with --doctor watch.",
                code="no_doctor",
            )
        return feature.doctor.describe()

    return routes
