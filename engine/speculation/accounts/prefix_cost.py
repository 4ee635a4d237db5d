"""Blocks of a prefix-cache hit that a draft gives up, by method, layers and block size.

Drafts that read the target's hidden states (EAGLE, MTP, DFlash, DSpark) need the states of the last
prompt token, which are not in the cache. vLLM therefore drops the last block of every hit
(``use_eagle_block_drop``, kv_cache_coordinator.py) and computes its tokens again. N-grams,
suffixes, Medusa and separate draft models drop nothing.

From 0.33 on a block's hash also covers the tokens that the draft reads after it
(``VllmConfig.num_hash_lookahead_tokens``), so EAGLE and MTP drop nothing, unless
``disable_lookahead_block_hashes`` is set or blocks are shared through a KV connector. DFlash and
DSpark drop nothing there (``SpeculativeConfig.needs_eagle_block_drop``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.recurrent import is_recurrent
from eaglegate.engine.vllm_contract import is_vllm_since

DROPPING = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""vLLM's names of the methods with ``SpeculativeConfig.use_eagle``."""
DROPPING_SINCE_033 = DROPPING - {"dflash", "dspark"}
LOOKAHEAD = (0, 33)
"""First version of vLLM whose block hashes look ahead."""


@dataclass(frozen=True, slots=True)
class PrefixCost:
    """Cost of a draft in the prefix cache. ``block_size`` is in tokens; None until the engine has
    started."""

    block_size: int | None
    window: int | None = None
    """The longest sliding window of the target's layers, in tokens."""
    recurrent: bool = False
    drops: bool = True
    looks_ahead: bool = False
    """True if vLLM's block hashes look ahead, which keeps the block."""

    def explain(self) -> str:
        """Explain the cost to operators, in one or more sentences."""
        if not self.drops:
            suffix = ": block hashes look ahead since vLLM 0.33" if self.looks_ahead else ""
            return f"the draft drops no block of a hit{suffix}"
        size = "block" if self.block_size is None else f"block of {self.block_size} tokens"
        text = f"the draft drops the last {size} of every hit"
        if self.block_size is not None:
            min_tokens = 2 * self.block_size + 1
            text += f"; prompts need {min_tokens} tokens or more for a hit"
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
    has_connector: bool = False,
) -> PrefixCost | None:
    """Return the cost of a draft with the installed vLLM; None without a draft.

    ``method`` is vLLM's name of the drafting method, if ``speculation`` does not give it.
    ``has_connector`` is True if a KV connector shares the blocks.
    """
    if not speculation:
        return None
    is_newer = is_vllm_since(*LOOKAHEAD)
    dropping = DROPPING_SINCE_033 if is_newer else DROPPING
    drops = (method or speculation.get("method")) in dropping
    drops = drops and not speculation.get("disable_eagle_block_drop")
    legacy = has_connector or speculation.get("disable_lookahead_block_hashes")
    looks_ahead = bool(drops and is_newer and not legacy)
    drops = drops and not looks_ahead
    return PrefixCost(block_size, _find_window(target), is_recurrent(target), drops, looks_ahead)


def _find_window(config: Mapping[str, Any]) -> int | None:
    """Return the sliding window, if some layers have one and the model uses it."""
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    slides = "sliding_attention" in kinds if isinstance(kinds, list) else True
    is_enabled = config.get("use_sliding_window", True) is not False
    return window if isinstance(window, int) and window > 0 and slides and is_enabled else None
