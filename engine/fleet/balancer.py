"""The rules of ``balance.py`` with the memory they need: what each worker has to do and has met."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from engine.fleet.balance import Candidate, Why, Wish, choose
from engine.fleet.load import Charge, Expectation, Load
from engine.fleet.prefix import Memory, chain
from engine.fleet.rules import BalanceRules
from engine.types import EngineRequest


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a request goes; settle its charge when it is over."""

    name: str
    why: Why
    charge: Charge
    known_tokens: int
    """Leading tokens of its prompt that the worker has met."""


class Balancer:
    """Knows workers by name. Not thread-safe."""

    def __init__(self, rules: BalanceRules) -> None:
        self.rules = rules
        self.expected = Expectation()
        self._loads: dict[str, Load] = {}
        self._memories: dict[str, Memory] = {}

    def join(self, name: str) -> None:
        """A worker comes, or comes back: its cache is empty, what runs in it still runs."""
        self._loads.setdefault(name, Load())
        self._memories[name] = Memory(self.rules.memory_blocks)

    def leave(self, name: str) -> None:
        del self._loads[name], self._memories[name]

    def load(self, name: str) -> Load:
        return self._loads[name]

    def assign(self, request: EngineRequest, among: Collection[str]) -> Assignment:
        """To one of ``among``, of which there is at least one."""
        rules = self.rules
        names = chain(request.prompt, rules.block, rules.most_blocks, request.cache_salt)
        candidates = [
            Candidate(name, self._loads[name].tokens, self._memories[name].known(names))
            for name in sorted(among)
        ]
        output = self.expected.of(request.sampling.max_tokens)
        cost = len(request.prompt) + output * rules.output_weight
        key = names[min(len(names), rules.key_blocks) - 1] if names else None
        wish = Wish(request.id.encode()[-64:], cost, request.affinity, key)
        chosen, why = choose(candidates, wish, rules)
        self._memories[chosen.name].meet(names)
        known = min(chosen.known * rules.block, len(request.prompt))
        prefill = len(request.prompt) - known
        charge = self._loads[chosen.name].take(prefill, output, rules.output_weight)
        return Assignment(chosen.name, why, charge, known)
