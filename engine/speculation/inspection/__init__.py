"""Draft inspection: what a draft is and whether it fits, from config.json and headers alone."""

from engine.speculation.inspection.case import Finding, Severity, SpeculationReport
from engine.speculation.inspection.inspect import inspect_draft

__all__ = ["Finding", "Severity", "SpeculationReport", "inspect_draft"]
