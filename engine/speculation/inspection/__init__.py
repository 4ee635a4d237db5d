"""Draft inspection: what a draft is and whether it fits, from config.json and headers alone."""

from engine.speculation.inspection.inspect import inspect_draft
from engine.speculation.inspection.report import Finding, Severity, SpeculationReport

__all__ = ["Finding", "Severity", "SpeculationReport", "inspect_draft"]
