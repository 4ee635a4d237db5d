"""The beginnings of prompts: what a prefix cache can share, and which worker has it.

A worker's cache holds whole blocks, each good only behind the same blocks before it. So a prompt is
named by a chain of hashes, one per block, each of everything up to its end.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BlockHashes = Sequence[bytes]
"""Entry i names the first i + 1 blocks of a prompt."""


def hash_blocks(
    prompt: Sequence[int], block: int, most: int, salt: str | None = None
) -> list[bytes]:
    """The names of the leading whole blocks, ``most`` at most.

    Prompts with different salts share nothing: the workers' caches do not, either.
    """
    raw = array("I", prompt[: block * most])
    digest = blake2b((salt or "").encode(), digest_size=8)
    names = []
    for end in range(block, len(raw) + 1, block):
        digest.update(raw[end - block : end])
        names.append(digest.digest())
    return names


class PrefixMemory:
    """Blocks one worker has met, the least recently used forgotten first.

    A guess at its cache: nobody asks the worker.
    """

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._met: OrderedDict[bytes, None] = OrderedDict()

    def meet(self, names: BlockHashes) -> None:
        """The worker gets a prompt. Its first block is the last to be forgotten."""
        for name in reversed(names):
            self._met[name] = None
            self._met.move_to_end(name)
        while len(self._met) > self._most:
            self._met.popitem(last=False)

    def known(self, names: BlockHashes) -> int:
        """How many leading blocks of a prompt it has met."""
        for at, name in enumerate(names):
            if name not in self._met:
                return at
        return len(names)

    def __len__(self) -> int:
        return len(self._met)
