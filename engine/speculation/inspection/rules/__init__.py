"""The rules. A new one is a function in the module it belongs to and a row in that RULES."""

from __future__ import annotations

from engine.speculation.inspection.case import InspectionRule
from engine.speculation.inspection.rules import (
    config,
    general,
    layers,
    tensors,
    vocabulary,
)

ALWAYS: tuple[InspectionRule, ...] = general.SETTINGS_RULES + general.OTHER_METHOD_RULES
EAGLE3_CONFIG: tuple[InspectionRule, ...] = config.RULES + layers.RULES
EAGLE3_TENSORS: tuple[InspectionRule, ...] = tensors.RULES + vocabulary.RULES
