"""Request routing: the choice of a worker for each request.

A request with a session goes to the worker that the session's name hashes to. Any other request
goes to the worker that knows the start of its prompt, else to the worker that its hash selects. A
worker with over (1 + epsilon) times the mean load gets no more; the request then goes to the next
worker in its own order. This is consistent hashing with bounded loads (Mirrokni, Thorup,
Zadimoghaddam, 2017), with tokens for balls. Since requests differ in weight, the bound holds for
the load before the last request.

The load of a worker is the number of tokens that it still has to process. A request weighs its
prompt tokens that are not cached plus its expected output tokens. The first part drops to zero with
the first token; the second shrinks with every token.

A worker's prefix cache holds whole blocks, each valid only after the same preceding blocks. A
prompt is therefore identified by a chain of hashes, one per block, each over the prompt up to the
end of its block.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from eaglegate.engine.fleet.types import RoutingReason, RoutingSettings
from eaglegate.engine.types import Arm, EngineRequest


class WorkerLoad:
    """The load of one worker, in tokens."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        self.requests = 0


class LoadCharge:
    """One request's share of a load, from submission to ``settle``."""

    __slots__ = ("_load", "_output", "_remainder", "_weight", "num_made")

    def __init__(self, load: WorkerLoad, prefill: float, output: float, weight: float) -> None:
        self._load = load
        self._output = output
        self._weight = weight
        self._remainder = prefill + output * weight
        self.num_made = 0
        load.tokens += self._remainder
        load.requests += 1

    def record_tokens(self, tokens: int) -> None:
        """Record generated tokens. A request that exceeds its expected length still weighs its next
        token."""
        self.num_made += tokens
        self._weigh(max(1.0, self._output - self.num_made) * self._weight)

    def settle(self) -> None:
        """Remove the charge when the request has ended. Call this once."""
        self._weigh(0.0)
        self._load.requests -= 1
        if not self._load.requests:
            self._load.tokens = 0.0  # remove rounding errors

    def _weigh(self, remainder: float) -> None:
        self._load.tokens += remainder - self._remainder
        self._remainder = remainder


class OutputEstimate:
    """Expected length of an answer: the running mean of earlier answers, at most ``max_tokens``."""

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
    prompt: Sequence[int], block: int, max_blocks: int, salt: str | None = None
) -> list[bytes]:
    """Return the hashes of at most ``max_blocks`` leading whole blocks.

    Prompts with different salts share nothing, as in the workers' caches.
    """
    token_array = array("I", prompt[: block * max_blocks])
    digest = blake2b((salt or "").encode(), digest_size=8)
    names = []
    for end in range(block, len(token_array) + 1, block):
        digest.update(token_array[end - block : end])
        names.append(digest.digest())
    return names


class PrefixMemory:
    """Blocks that one worker has received, with least-recently-used eviction.

    This estimates the worker's prefix cache without asking the worker.
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
        """Return the number of leading blocks of a prompt that the worker has received."""
        for index, name in enumerate(names):
            if name not in self._blocks:
                return index
        return len(names)

    def __len__(self) -> int:
        return len(self._blocks)


@dataclass(frozen=True, slots=True)
class RoutingCandidate:
    """A serving worker that may get the request."""

    name: str
    load: float
    """Tokens that the worker still has to process."""
    known_blocks: int = 0
    """Leading blocks of the prompt that the worker knows."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """Facts about a request that routing needs."""

    tie: bytes
    """Anything that differs from request to request."""
    cost: float
    session: str | None = None
    key: bytes | None = None
    """Hash of the prompt's leading blocks; None without a whole block."""


def order_by_hash(key: bytes, names: Sequence[str]) -> list[str]:
    """Return ``names`` in an order that depends on the key (highest random weight).

    When a name joins or leaves, the order of the others stays. Only 1/n of the keys move to or from
    that name.
    """
    return sorted(names, key=lambda name: blake2b(name.encode(), key=key, digest_size=8).digest())


def compute_bound(loads: Sequence[float], cost: float, settings: RoutingSettings) -> float:
    """Return the load above which a worker is passed over. One worker is always at or below it."""
    mean = (sum(loads) + cost) / len(loads)
    return max((1 + settings.epsilon) * mean, settings.slack)


def choose_least_loaded(candidates: Sequence[RoutingCandidate], tie: bytes) -> RoutingCandidate:
    """Return the candidate with the least load; ``tie`` decides between equals."""
    min_load = min(candidate.load for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.load == min_load]
    return _order(equals, tie)[0]


def order_candidates(
    candidates: Sequence[RoutingCandidate], request: RoutingRequest
) -> tuple[RoutingReason, list[RoutingCandidate]]:
    """Return all candidates in the request's order of preference, with the reason for it."""
    if request.session is not None:
        return RoutingReason.SESSION, _order(candidates, _digest(request.session))
    assert request.key is not None
    order = _order(candidates, request.key)
    if any(candidate.known_blocks for candidate in order):
        return RoutingReason.PREFIX, sorted(order, key=lambda c: (-c.known_blocks, c.load))
    return RoutingReason.HASH, order


def choose_worker(
    candidates: Sequence[RoutingCandidate], request: RoutingRequest, settings: RoutingSettings
) -> tuple[RoutingCandidate, RoutingReason]:
    """Choose one of ``candidates``, which must not be empty."""
    if request.session is None and request.key is None:
        return choose_least_loaded(candidates, request.tie), RoutingReason.LEAST
    reason, order = order_candidates(candidates, request)
    bound = compute_bound([candidate.load for candidate in candidates], request.cost, settings)
    index = next(index for index, candidate in enumerate(order) if candidate.load <= bound)
    return order[index], reason if index == 0 else RoutingReason.SPILLED


def find_owner(unit: str, names: Sequence[str]) -> str:
    """Return the worker to which a session or another hashed text belongs."""
    return order_by_hash(_digest(unit), names)[0]


def _order(candidates: Sequence[RoutingCandidate], key: bytes) -> list[RoutingCandidate]:
    by_name = {candidate.name: candidate for candidate in candidates}
    return [by_name[name] for name in order_by_hash(key, list(by_name))]


def _digest(text: str) -> bytes:
    """Return a key short enough for blake2b."""
    return blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The worker for a request; settle its charge when the request ends."""

    name: str
    reason: RoutingReason
    charge: LoadCharge
    known_tokens: int
    """Leading tokens of the prompt that the worker knows."""


@dataclass(slots=True)
class WorkerReservations:
    """Reservations of workers for the requests of a canary's arms."""

    candidate: str | None = None
    """The worker that gets only the requests of the candidate arm."""
    held_names: set[str] = field(default_factory=set)
    """Workers that get no requests."""

    def select(self, names: Sequence[str], arm: Arm | None) -> list[str]:
        """Select the workers that a request may go to, or all of ``names`` if none is left."""
        free_names = [name for name in names if name not in self.held_names]
        if self.candidate is None:
            return free_names or list(names)
        arm_names = [
            name for name in free_names if (name == self.candidate) is (arm is Arm.CANDIDATE)
        ]
        return arm_names or free_names or list(names)


class LoadBalancer:
    """Router by the load and the known prefixes of each worker. Not thread-safe."""

    def __init__(self, settings: RoutingSettings) -> None:
        self.settings = settings
        self.expected = OutputEstimate()
        self._loads: dict[str, WorkerLoad] = {}
        self._memories: dict[str, PrefixMemory] = {}

    def add_worker(self, name: str) -> None:
        """Add a worker, or reset one that came back: its cache is empty, its requests still run."""
        self._loads.setdefault(name, WorkerLoad())
        self._memories[name] = PrefixMemory(self.settings.memory_blocks)

    def remove_worker(self, name: str) -> None:
        del self._loads[name], self._memories[name]

    def load(self, name: str) -> WorkerLoad:
        return self._loads[name]

    def assign(self, request: EngineRequest, among: Collection[str]) -> Assignment:
        """Assign the request to one of ``among``, which must not be empty."""
        settings = self.settings
        names = hash_blocks(
            request.prompt, settings.block, settings.most_blocks, request.cache_salt
        )
        candidates = [
            RoutingCandidate(
                name, self._loads[name].tokens, self._memories[name].count_known(names)
            )
            for name in sorted(among)
        ]
        output = self.expected.estimate(request.sampling.max_tokens)
        cost = request.num_prompt + output * settings.output_weight
        key = names[min(len(names), settings.key_blocks) - 1] if names else None
        routing_request = RoutingRequest(request.id.encode()[-64:], cost, request.affinity, key)
        worker, reason = choose_worker(candidates, routing_request, settings)
        self._memories[worker.name].add(names)
        cached_tokens = min(worker.known_blocks * settings.block, request.num_prompt)
        prefill = request.num_prompt - cached_tokens
        charge = LoadCharge(self._loads[worker.name], prefill, output, settings.output_weight)
        return Assignment(worker.name, reason, charge, cached_tokens)
