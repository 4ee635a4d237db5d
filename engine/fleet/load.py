"""How much work a worker has before it: tokens it was given and has not made.

A request weighs what is left of its prompt to prefill, and the tokens it is expected to make. The
first becomes nothing with the first token; the second shrinks with every one.
"""

from __future__ import annotations


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

    def made(self, tokens: int) -> None:
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
