"""Cost of a request before it reaches the engine, charged before the work is done.

Three things run out while requests are read, rendered and tokenized, and each is bounded here:
*bytes* of bodies that are held at a time, *tokens* of the key's minute, and the *turns* of those
that need a thread or a process for long. Bytes count from the first that comes in until the
response is over. Turns go round the keys, so that many large requests of one key delay another's by
one at most.

Tokens are paid in advance: an estimate from the bytes before they are parsed, then those of the
prompt with those reserved for the answer. The request settles for what it used. One that is refused
before its prompt is tokenized, or for its tokens, pays nothing; one that is refused otherwise pays
the estimate.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from eaglegate.server.errors import TooManyRequests

if TYPE_CHECKING:
    from eaglegate.server.access.caller import KeyQuota

Result = TypeVar("Result")

HELD_BYTES = 96 << 20
"""Bytes that all request bodies may hold together."""
READ_BYTES = 64 << 20
"""Bytes that readers of stored answers may hold together. Slow readers hold up no request bodies.
"""
SHARE = 0.5
"""Share of either limit that one key may hold."""
BYTES_PER_TOKEN = 16
"""Bytes of a body that are charged as one token before it is read. Text usually has 4 bytes a
token, so the estimate is rarely too high."""
TURNS = 2
"""Large requests that are prepared at a time."""
SMALL_BYTES = 64 << 10
"""A body of so many is parsed at once."""
RETRY_S = 2.0


@dataclass(eq=False, slots=True)
class RequestCharge:
    """Charges of one request. ``close`` it when its response is over."""

    budget: RequestBudget
    name: str | None = None
    """The key's public name."""
    quota: KeyQuota | None = None
    num_bytes: int = 0
    num_stored: int = 0
    prepaid: float = 0.0
    """Tokens paid in advance."""
    estimated: float = 0.0
    """Tokens of the estimate, set when the prompt is tokenized."""
    shares: int = 1
    """Holders that still need the bytes: the response, and a background run."""

    def hold(self, num_bytes: int) -> None:
        """More of the body is there, or of what it refers to. Raises TooManyRequests."""
        self.budget.bodies.hold(self.name, num_bytes)
        self.num_bytes += num_bytes

    def hold_stored(self, num_bytes: int) -> None:
        """Hold ``num_bytes`` of a stored answer that goes to a client. Raises TooManyRequests."""
        self.budget.stored.hold(self.name, num_bytes)
        self.num_stored += num_bytes

    def estimate(self) -> None:
        """Pay for the body before it is parsed: no more than a prompt may have."""
        if self.quota is not None:
            tokens = min(self.num_bytes // BYTES_PER_TOKEN, self.budget.longest_prompt)
            self.prepaid += self.quota.pay(tokens)

    def begin_tokenizing(self) -> None:
        """The work that the estimate is for is done now, whatever becomes of the request."""
        self.estimated = self.prepaid

    def reserve(self, prompt: int, answer: int | None) -> None:
        """Pay for the prompt and its answer in place of the estimate.

        Raises TooManyRequests and InvalidRequest (``KeyQuota.reserve``); then nothing is paid, or
        the time in Retry-After would not be enough.
        """
        if self.quota is not None:
            self._settle(0)
            self.prepaid = self.quota.reserve(prompt, answer)

    def settle(self, prompt: int, answer: int) -> None:
        """The request has used so many tokens, and is over."""
        self._settle(prompt + answer)
        self.estimated = 0
        if self.quota is not None:
            self.quota.note_answer(answer)

    def extend(self) -> None:
        """Hold the bytes for a background run, too; it closes the charge once more."""
        self.shares += 1

    def close(self) -> None:
        """Give the bytes back when the last that needs them is over, and tokens not settled."""
        self.shares -= 1
        if self.shares == 0:
            self.budget.bodies.release(self.name, self.num_bytes)
            self.budget.stored.release(self.name, self.num_stored)
            if self.prepaid:
                self._settle(self.estimated)

    async def parse(self, work: Callable[[], Result]) -> Result:
        """The result of reading the body: off the event loop, in its turn, where it is large."""
        if self.num_bytes <= SMALL_BYTES:
            return work()
        async with self.budget.turn(self.name):
            return await asyncio.to_thread(work)

    def _settle(self, tokens: float) -> None:
        """``tokens`` are what was to be paid, in place of what was prepaid."""
        prepaid, self.prepaid = self.prepaid, 0
        if self.quota is not None:
            self.quota.pay(tokens - prepaid)


@dataclass(eq=False)
class HeldBytes:
    """Bytes of one kind that are held at a time: of all clients, and of one key."""

    kind: str
    most: int
    total: int = 0
    _of_keys: Counter[str | None] = field(default_factory=Counter)

    def hold(self, name: str | None, num_bytes: int) -> None:
        """Raises TooManyRequests."""
        share = self.most if name is None else int(self.most * SHARE)
        if self.total + num_bytes > self.most or self._of_keys[name] + num_bytes > share:
            raise TooManyRequests(
                f"Too many bytes of {self.kind} are held: the limit is {self.most} for all "
                f"clients and {share} for this one. Retry after the time in Retry-After.",
                code="request_bytes_exceeded",
                retry_after_s=RETRY_S,
            )
        self.total += num_bytes
        self._of_keys[name] += num_bytes

    def release(self, name: str | None, num_bytes: int) -> None:
        self.total -= num_bytes
        self._of_keys[name] -= num_bytes
        if self._of_keys[name] <= 0:
            del self._of_keys[name]


@dataclass(eq=False)
class RequestBudget:
    """One per gateway; one event loop."""

    held_bytes: int = HELD_BYTES
    turns: int = TURNS
    longest_prompt: int = 1 << 62
    """Tokens of the model's context, once it is known."""
    read_bytes: int = READ_BYTES
    _taken: int = 0
    _waiting: dict[str | None, deque[asyncio.Future[None]]] = field(default_factory=dict)
    """Waiting requests by key, in the order of the keys' next turns."""

    def __post_init__(self) -> None:
        self.bodies = HeldBytes("requests", self.held_bytes)
        self.stored = HeldBytes("stored answers that are being read", self.read_bytes)

    @property
    def held(self) -> int:
        """Bytes of bodies."""
        return self.bodies.total

    def open(self, name: str | None = None, quota: KeyQuota | None = None) -> RequestCharge:
        return RequestCharge(self, name, quota)

    @asynccontextmanager
    async def turn(self, name: str | None) -> AsyncIterator[None]:
        """Wait until it is this key's turn, and have it."""
        if self._taken >= self.turns:
            await self._wait(name)
        else:
            self._taken += 1
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, name: str | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next key, and put that key at the end of the line."""
        while self._waiting:
            name = next(iter(self._waiting))
            line = self._waiting.pop(name)
            turn = line.popleft()
            if line:
                self._waiting[name] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1


current_charge: ContextVar[RequestCharge] = ContextVar(
    "current_charge",
    default=RequestBudget(1 << 62).open(),  # noqa: B039
)
"""Charge of the current request, set by the authentication middleware."""
