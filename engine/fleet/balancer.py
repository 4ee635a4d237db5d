"""The rules of ``balance.py`` with the memory they need: what each worker has to do and has met."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.fleet.balance import Candidate, RoutingReason, RoutingRequest, choose_worker
from engine.fleet.load import LoadCharge, OutputEstimate, WorkerLoad
from engine.fleet.prefix import PrefixMemory, hash_blocks
from engine.fleet.rules import RoutingSettings
from engine.types import EngineRequest


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a request goes; settle its charge when it is over."""

    name: str
    why: RoutingReason
    charge: LoadCharge
    known_tokens: int
    """Leading tokens of its prompt that the worker has met."""


class LoadBalancer:
    """Knows workers by name. Not thread-safe."""

    def __init__(self, rules: RoutingSettings) -> None:
        self.rules = rules
        self.expected = OutputEstimate()
        self._loads: dict[str, WorkerLoad] = {}
        self._memories: dict[str, PrefixMemory] = {}

    def join(self, name: str) -> None:
        """A worker comes, or comes back: its cache is empty, what runs in it still runs."""
        self._loads.setdefault(name, WorkerLoad())
        self._memories[name] = PrefixMemory(self.rules.memory_blocks)

    def leave(self, name: str) -> None:
        del self._loads[name], self._memories[name]

    def load(self, name: str) -> WorkerLoad:
        return self._loads[name]

    def assign(self, request: EngineRequest, among: Collection[str]) -> Assignment:
        """To one of ``among``, of which there is at least one."""
        rules = self.rules
        names = hash_blocks(request.prompt, rules.block, rules.most_blocks, request.cache_salt)
        candidates = [
            Candidate(name, self._loads[name].tokens, self._memories[name].known(names))
            for name in sorted(among)
        ]
        output = self.expected.of(request.sampling.max_tokens)
        cost = len(request.prompt) + output * rules.output_weight
        key = names[min(len(names), rules.key_blocks) - 1] if names else None
        wish = RoutingRequest(request.id.encode()[-64:], cost, request.affinity, key)
        chosen, why = choose_worker(candidates, wish, rules)
        self._memories[chosen.name].meet(names)
        known = min(chosen.known * rules.block, len(request.prompt))
        prefill = len(request.prompt) - known
        charge = self._loads[chosen.name].take(prefill, output, rules.output_weight)
        return Assignment(chosen.name, why, charge, known)
