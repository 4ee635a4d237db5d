"""Worker load and cached prefixes, as far as the gateway can estimate them.

The load of a worker is the tokens it was given and has not generated. A request weighs what is left
of its prompt to prefill plus its expected output tokens. The first part drops to zero with the
first token; the second shrinks with every token.

A worker's prefix cache holds whole blocks, each valid only behind the same blocks before it. A
prompt is therefore identified by a chain of hashes, one per block, each over everything up to its
end.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b


class WorkerLoad:
    """The load of one worker, in tokens."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.requests = 0

    def add_charge(self, prefill: float, output: float, weight: float = 1.0) -> LoadCharge:
        return LoadCharge(self, prefill, output, weight)


class LoadCharge:
    """One request's share of a load, from submission to ``settle``."""

    __slots__ = ("_left", "_load", "_output", "_weight", "num_made")

    def __init__(self, load: WorkerLoad, prefill: float, output: float, weight: float) -> None:
        self._load = load
        self._output = output
        self._weight = weight
        self._left = prefill + output * weight
        self.num_made = 0
        load.tokens += self._left
        load.requests += 1

    def record_tokens(self, tokens: int) -> None:
        """A request that generates more than expected still weighs its next token."""
        self.num_made += tokens
        self._weigh(max(1.0, self._output - self.num_made) * self._weight)

    def settle(self) -> None:
        """The request has ended. Call once."""
        self._weigh(0.0)
        self._load.requests -= 1
        if not self._load.requests:
            self._load.tokens = 0.0  # what rounding left

    def _weigh(self, left: float) -> None:
        self._load.tokens += left - self._left
        self._left = left


class OutputEstimate:
    """Expected length of an answer: the running mean of earlier ones, within its own limit."""

    def __init__(self, first: float = 256.0, forget: float = 0.02) -> None:
        self.mean = first
        self._forget = forget

    def estimate(self, max_tokens: int) -> float:
        return min(float(max_tokens), self.mean)

    def learn(self, tokens: int) -> None:
        self.mean += self._forget * (tokens - self.mean)


BlockHashes = Sequence[bytes]
"""Entry i is the hash of the first i + 1 blocks of a prompt."""


def hash_blocks(
    prompt: Sequence[int], block: int, most: int, salt: str | None = None
) -> list[bytes]:
    """The hashes of at most ``most`` leading whole blocks.

    Prompts with different salts share nothing, as in the workers' caches.
    """
    raw = array("I", prompt[: block * most])
    digest = blake2b((salt or "").encode(), digest_size=8)
    names = []
    for end in range(block, len(raw) + 1, block):
        digest.update(raw[end - block : end])
        names.append(digest.digest())
    return names


class PrefixMemory:
    """Blocks that one worker has received, with least-recently-used eviction.

    An estimate of its cache: the worker itself is not asked.
    """

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def add(self, names: BlockHashes) -> None:
        """Record a prompt. Its first block is evicted last."""
        for name in reversed(names):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def count_known(self, names: BlockHashes) -> int:
        """The number of leading blocks of a prompt that it holds."""
        for at, name in enumerate(names):
            if name not in self._blocks:
                return at
        return len(names)

    def __len__(self) -> int:
        return len(self._blocks)
