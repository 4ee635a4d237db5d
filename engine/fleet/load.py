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
    """The work of one worker."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.requests = 0

    def take(self, prefill: float, output: float, weight: float = 1.0) -> LoadCharge:
        return LoadCharge(self, prefill, output, weight)


class LoadCharge:
    """One request's part of a load, from submission to ``settle``."""

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
        """It made tokens. A request that makes more than expected still weighs its next one."""
        self.num_made += tokens
        self._weigh(max(1.0, self._output - self.num_made) * self._weight)

    def settle(self) -> None:
        """It is over. Call once."""
        self._weigh(0.0)
        self._load.requests -= 1
        if not self._load.requests:
            self._load.tokens = 0.0  # what rounding left

    def _weigh(self, left: float) -> None:
        self._load.tokens += left - self._left
        self._left = left


class OutputEstimate:
    """How many tokens an answer will have: as many as those before it, within its own limit."""

    def __init__(self, first: float = 256.0, forget: float = 0.02) -> None:
        self.mean = first
        self._forget = forget

    def of(self, max_tokens: int) -> float:
        return min(float(max_tokens), self.mean)

    def learn(self, tokens: int) -> None:
        self.mean += self._forget * (tokens - self.mean)


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
