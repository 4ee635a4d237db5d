"""Blocks of a prefix-cache hit that a draft gives up, by method, layers and block size.

Drafts that read the target's hidden states (EAGLE, MTP, DFlash, DSpark) need the states of the last
prompt token, which are not in the cache. vLLM therefore drops the last block of every hit
(``use_eagle_block_drop``, kv_cache_coordinator.py) and computes its tokens again. N-grams,
suffixes, Medusa and separate draft models drop nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eaglegate.engine.speculation.inspection.recurrent import is_recurrent

DROPPING = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""vLLM's names of the methods with ``SpeculativeConfig.use_eagle``."""


@dataclass(frozen=True, slots=True)
class PrefixCost:
    """Cost of a draft in the prefix cache. ``block_size`` is in tokens; None until the engine has
    started."""

    block_size: int | None
    window: int | None = None
    """The longest sliding window of the target's layers, in tokens."""
    recurrent: bool = False
    drops: bool = True

    def explain(self) -> str:
        """Explain the cost to operators, in one or more sentences."""
        if not self.drops:
            return "the draft drops no block of a hit"
        size = "block" if self.block_size is None else f"block of {self.block_size} tokens"
        text = f"the draft drops the last {size} of every hit"
        if self.block_size is not None:
            least = 2 * self.block_size + 1
            text += f"; prompts need {least} tokens or more for a hit"
        if self.window is not None and self.block_size is not None:
            blocks = -(-(self.window - 1) // self.block_size) + 1
            text += (
                f"; layers with a window of {self.window} tokens need {blocks} cached blocks in a "
                "row instead of " + str(blocks - 1)
            )
        if self.recurrent:
            text += (
                "; vLLM raises the block size of models with recurrent layers at the start, often "
                "to 1,600 tokens or more"
            )
        return text


def find_prefix_cost(
    speculation: Mapping[str, Any] | None,
    target: Mapping[str, Any],
    block_size: int | None,
    method: str | None = None,
) -> PrefixCost | None:
    """Return the cost of a draft; None without a draft.

    ``method`` is vLLM's name of the drafting method, if ``speculation`` does not give it.
    """
    if not speculation:
        return None
    drops = (method or speculation.get("method")) in DROPPING
    drops = drops and not speculation.get("disable_eagle_block_drop")
    return PrefixCost(block_size, _find_window(target), is_recurrent(target), drops)


def _find_window(config: Mapping[str, Any]) -> int | None:
    """Return the sliding window, if some layers have one and the model uses it."""
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    slides = "sliding_attention" in kinds if isinstance(kinds, list) else True
    used = config.get("use_sliding_window", True) is not False
    return window if isinstance(window, int) and window > 0 and slides and used else None
