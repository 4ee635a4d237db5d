"""The rules of draft inspection. A new rule is a function and a row of its module's table."""

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
