"""Every rule of the draft inspection by its name, as in docs/drafts.md."""

from __future__ import annotations

from eaglegate.engine.speculation.drafts.inspection import (
    block_rules,
    config_rules,
    general_rules,
    medusa_rules,
    speculators_rules,
    tensor_rules,
)

ALL_RULES = {
    **general_rules.RULES,
    **speculators_rules.RULES,
    **config_rules.RULES,
    **tensor_rules.RULES,
    **block_rules.RULES,
    **block_rules.TENSOR_RULES,
    **medusa_rules.RULES,
}
