"""Request routing: which of several workers gets a request.

A request with a session goes to the worker that the session's name hashes to. Any other goes to the
worker that knows the start of its prompt, else to the one its hash selects. No worker is given more
while it has over (1 + epsilon) times the mean load: the request then goes to the next worker in its
own order. This is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2017),
with tokens for balls; since requests differ in weight, the bound holds for the load before the last
request.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

from engine.fleet.load import LoadCharge, OutputEstimate, PrefixMemory, WorkerLoad, hash_blocks
from engine.fleet.settings import RoutingSettings
from engine.types import EngineRequest


class RoutingReason(StrEnum):
    """What decided where a request went."""

    SESSION = "session"
    """Its session's worker."""
    PREFIX = "prefix"
    """The worker that has met most of its prompt; of equals, the one with the least to do."""
    HASH = "hash"
    """Nobody has met its prompt: the first worker by hash."""
    SPILLED = "spilled"
    """The worker it belonged to had too much to do."""
    LEAST = "least"
    """Nothing to go by but load: the prompt is shorter than a block."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that serves."""

    name: str
    load: float
    """Tokens it has before it."""
    known: int = 0
    """Leading blocks of the prompt that it has met."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What a request asks for."""

    tie: bytes
    """Anything that differs from request to request."""
    cost: float
    session: str | None = None
    key: bytes | None = None
    """Its prompt's leading blocks; None without a whole one."""


def order_by_hash(key: bytes, names: Sequence[str]) -> list[str]:
    """All ``names``, in an order of the key's own (highest random weight).

    When a name joins or leaves, the order of the others stays: 1/n of the keys move, to it or
    from it.
    """
    return sorted(names, key=lambda name: blake2b(name.encode(), key=key, digest_size=8).digest())


def compute_bound(loads: Sequence[float], cost: float, rules: RoutingSettings) -> float:
    """The load above which a worker is passed over. One worker is always at or below it."""
    mean = (sum(loads) + cost) / len(loads)
    return max((1 + rules.epsilon) * mean, rules.slack)


def choose_least_loaded(candidates: Sequence[Candidate], tie: bytes) -> Candidate:
    """The one with the least to do; which of equals, the tie decides."""
    lightest = min(candidate.load for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.load == lightest]
    return _ordered(equals, tie)[0]


def order_candidates(
    candidates: Sequence[Candidate], wish: RoutingRequest
) -> tuple[RoutingReason, list[Candidate]]:
    """All of them, in the order the request would like."""
    if wish.session is not None:
        return RoutingReason.SESSION, _ordered(candidates, _digest(wish.session))
    assert wish.key is not None
    order = _ordered(candidates, wish.key)
    if any(candidate.known for candidate in order):
        return RoutingReason.PREFIX, sorted(order, key=lambda c: (-c.known, c.load))
    return RoutingReason.HASH, order


def choose_worker(
    candidates: Sequence[Candidate], wish: RoutingRequest, rules: RoutingSettings
) -> tuple[Candidate, RoutingReason]:
    """One of ``candidates``, of which there is at least one."""
    if wish.session is None and wish.key is None:
        return choose_least_loaded(candidates, wish.tie), RoutingReason.LEAST
    why, order = order_candidates(candidates, wish)
    most = compute_bound([candidate.load for candidate in candidates], wish.cost, rules)
    at = next(at for at, candidate in enumerate(order) if candidate.load <= most)
    return order[at], why if at == 0 else RoutingReason.SPILLED


def _ordered(candidates: Sequence[Candidate], key: bytes) -> list[Candidate]:
    by_name = {candidate.name: candidate for candidate in candidates}
    return [by_name[name] for name in order_by_hash(key, list(by_name))]


def _digest(text: str) -> bytes:
    """Keys of any length, as short as blake2b wants them."""
    return blake2b(text.encode(), digest_size=16).digest()


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
