"""Removal of the cached blocks of a single prefix, in the engine process.

The hash of its first block identifies a prefix, and all later blocks lead back to it. It is not
enough to drop the first block: once it is computed again, a prompt finds the old blocks after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request


class PrefixBlocks:
    """Hashes of the first block that each cached block leads back to, by block number."""

    def __init__(self) -> None:
        self.active = False
        """True if blocks are recorded. This takes time in every step, and only cures need it."""
        self._roots: dict[int, bytes] = {}
        self._num_recorded: dict[str, list[int]] = {}
        """Number of recorded blocks of each running request, by cache group."""

    def note(self, request: Request, coordinator: Any) -> None:
        """Record new blocks of a request, after they were cached."""
        if not request.block_hashes:
            return
        groups = coordinator.get_blocks(request.request_id)
        num_recorded = self._num_recorded.setdefault(request.request_id, [0] * len(groups))
        for number, blocks in enumerate(groups):
            while num_recorded[number] < len(blocks):
                block = blocks[num_recorded[number]]
                if not block.is_null:
                    if block.block_hash is None:
                        break
                    self._roots[block.block_id] = request.block_hashes[0]
                num_recorded[number] += 1

    def forget(self, request_id: str) -> None:
        self._num_recorded.pop(request_id, None)

    def list_blocks(self, root: bytes) -> set[int]:
        return {block for block, block_root in self._roots.items() if block_root == root}


def track_prefixes(core: EngineCore) -> bool:
    """Record the prefix of every block that is cached from now on."""
    core.scheduler.prefixes.active = True
    return True


def drop_prefix(
    core: EngineCore, prompt: Sequence[int] | None, salt: str | None, adapter: str | None
) -> int:
    """Drop the cached blocks of a prompt's prefix, or all blocks without a prompt; return their
    number.

    Running requests keep theirs. The next request computes the dropped blocks again.
    """
    pool = core.scheduler.kv_cache_manager.block_pool
    block_ids = {block.block_id for block in pool.blocks if block.block_hash is not None}
    if prompt is not None:
        root = _find_root(core, prompt, salt, adapter)
        block_ids &= core.scheduler.prefixes.list_blocks(root) if root is not None else set()
    pool.evict_blocks(block_ids)
    return len(block_ids)


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
