"""Count of prompt tokens in the prefix cache that are computed again because of the draft.

vLLM drops the last block of a hit for drafts that read hidden states. This module counts its tokens
for each request: the hit without the drop, minus the actual hit.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request


class PrefixDrops:
    """Counter of dropped tokens at every lookup of ``manager``."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._coordinator = manager.coordinator
        self._tokens: dict[str, int] = {}
        self.total = 0
        """Dropped tokens of all requests that were served."""
        if getattr(self._coordinator, name_groups(self._coordinator)):
            self._watch(manager)

    def take(self, request_id: str) -> int:
        """Remove and return the dropped tokens of a request's last lookup."""
        return self._tokens.pop(request_id, 0)

    def count(self, request_id: str) -> int:
        """Remove and return the dropped tokens of a served request, and add them to ``total``."""
        num_dropped = self.take(request_id)
        self.total += num_dropped
        return num_dropped

    def _watch(self, manager: KVCacheManager) -> None:
        look_up = manager.get_computed_blocks

        # From vLLM 0.33 on, the scheduler also passes the longest hit that it wants.
        def look_up_and_count(request: Request, *limits: int | None) -> Any:
            result = look_up(request, *limits)
            if not request.num_preemptions and manager.prefix_cache_lookup_enabled(request):
                num_dropped = self._count(request, result[1])
                self._tokens.pop(request.request_id, None)
                if num_dropped:
                    self._tokens[request.request_id] = num_dropped
            return result

        manager.get_computed_blocks = look_up_and_count

    def _count(self, request: Request, hit: int) -> int:
        coordinator = self._coordinator
        if hit and isinstance(coordinator, UnitaryKVCacheCoordinator):
            spec = coordinator.kv_cache_spec
            if isinstance(spec, FullAttentionSpec):  # a hit with a drop is one block short
                return int(coordinator.block_size)
        return max(0, find_hit_without_drop(coordinator, request) - hit)


def name_groups(coordinator: Any) -> str:
    """Return the attribute with the cache groups whose hits lose a block. In vLLM 0.33 the draft's
    groups keep their name, and those that lose a block are listed apart."""
    separate = "drop_eagle_group_ids"
    return separate if hasattr(coordinator, separate) else "eagle_group_ids"


def find_hit_without_drop(coordinator: Any, request: Request) -> int:
    """Return the tokens of the hit for a draft that drops nothing. Changes nothing."""
    name = name_groups(coordinator)
    group_ids = getattr(coordinator, name)
    groups = getattr(coordinator, "attention_groups", None)
    setattr(coordinator, name, set())
    if groups is not None:
        coordinator.attention_groups = [group._replace(use_eagle=False) for group in groups]
    try:
        hit = coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
    finally:
        setattr(coordinator, name, group_ids)
        if groups is not None:
            coordinator.attention_groups = groups
    return int(hit[1])
