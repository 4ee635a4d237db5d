"""Drop cached blocks of one prefix, and of no other, in the engine process.

A prefix is named by the hash of its first block, which all blocks after it go back to. To drop the
first block alone would not do: once it is computed again, a prompt finds the old ones after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request


class PrefixBlocks:
    """The hash of the first block that each cached block goes back to, by the block's number."""

    def __init__(self) -> None:
        self.active = False
        """Whether blocks are to be noted: it takes time in every step, and only cures need it."""
        self._roots: dict[int, bytes] = {}
        self._seen: dict[str, list[int]] = {}
        """Blocks of each running request that are known, by cache group."""

    def note(self, request: Request, coordinator: Any) -> None:
        """Called after blocks of a request were cached."""
        if not request.block_hashes:
            return
        groups = coordinator.get_blocks(request.request_id)
        seen = self._seen.setdefault(request.request_id, [0] * len(groups))
        for number, blocks in enumerate(groups):
            while seen[number] < len(blocks):
                block = blocks[seen[number]]
                if not block.is_null:
                    if block.block_hash is None:
                        break
                    self._roots[block.block_id] = request.block_hashes[0]
                seen[number] += 1

    def forget(self, request_id: str) -> None:
        self._seen.pop(request_id, None)

    def list_blocks(self, root: bytes) -> set[int]:
        return {block for block, own in self._roots.items() if own == root}


def track_prefixes(core: EngineCore) -> bool:
    """Note the prefix of every block that is cached from now on."""
    core.scheduler.prefixes.active = True
    return True


def drop_prefix(
    core: EngineCore, prompt: Sequence[int] | None, salt: str | None, adapter: str | None
) -> int:
    """Drop the cached blocks of a prompt's prefix, or all without a prompt; returns their number.

    Running requests keep theirs; the next request computes them again.
    """
    pool = core.scheduler.kv_cache_manager.block_pool
    cached = {block.block_id for block in pool.blocks if block.block_hash is not None}
    if prompt is not None:
        root = _find_root(core, prompt, salt, adapter)
        cached &= core.scheduler.prefixes.list_blocks(root) if root is not None else set()
    pool.evict_blocks(cached)
    return len(cached)


def _find_root(
    core: EngineCore, prompt: Sequence[int], salt: str | None, adapter: str | None
) -> bytes | None:
    request = Request(
        request_id="doctor",
        prompt_token_ids=[*prompt],
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=LoRARequest(adapter, 1, "-") if adapter else None,
        cache_salt=salt,
        block_hasher=core.request_block_hasher,
    )
    return request.block_hashes[0] if request.block_hashes else None
