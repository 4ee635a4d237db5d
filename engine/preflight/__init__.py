"""What an engine with these arguments would be, and what would stop it from starting here."""

from engine.preflight.plan import EnginePlan, make_plan
from engine.preflight.preflight import PreflightReport, preflight

__all__ = ["EnginePlan", "PreflightReport", "make_plan", "preflight"]
