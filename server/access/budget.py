"""What a request costs before the engine meets it: estimated and charged before the work is done.

Three things run out while requests are read, rendered and tokenized, and each is bounded here:
*bytes* of bodies that are held at a time, *tokens* of the key's minute, and the *turns* of those
that need a thread or a process for long. Bytes count from the first that comes in until the
response is over. Tokens are estimated from the bytes before they are parsed, and settled when the
prompt is known; a request that is refused has paid the estimate. Turns go round the keys, so that
many large requests of one key delay another's by one at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from server.access.fair_order import Priority
from server.errors import TooManyRequests

Clock = Callable[[], float]
MINUTE_S = 60.0


class RateBucket:
    """Holds up to ``per_minute``, fills at that rate, may be overdrawn by what is paid late."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    def wait_s(self, amount: float) -> float:
        """Seconds until ``amount`` is there; 0 when it is."""
        return max(0.0, (amount - self._now()) * MINUTE_S / self.per_minute)

    def take(self, amount: float) -> None:
        self._level = self._now() - amount

    def resume(self, earlier: RateBucket) -> None:
        """Continue with what an earlier bucket has used, in the same share of the minute."""
        self._level = self.per_minute * earlier._now() / earlier.per_minute

    def _now(self) -> float:
        now = self._clock()
        filled = self._level + (now - self._at) * self.per_minute / MINUTE_S
        self._level, self._at = min(float(self.per_minute), filled), now
        return self._level


class KeyQuota:
    """Requests and tokens per minute of one key; None for no limit.

    Tokens are paid when they are known: a key may enter while its bucket is not empty.
    """

    def __init__(
        self,
        name: str,
        requests: int | None = None,
        tokens: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._name = name
        self._requests = None if requests is None else RateBucket(requests, clock)
        self._tokens = None if tokens is None else RateBucket(tokens, clock)

    def take(self) -> None:
        """Pay for one request. Raises TooManyRequests."""
        if self._tokens is not None:
            self._refuse(self._tokens, "tokens", "key_tokens_exceeded")
        if self._requests is not None:
            self._refuse(self._requests, "requests", "key_requests_exceeded")
            self._requests.take(1)

    def resume(self, earlier: KeyQuota) -> None:
        """Continue where the quota that this one replaces has come to."""
        for bucket, before in (
            (self._requests, earlier._requests),
            (self._tokens, earlier._tokens),
        ):
            if bucket is not None and before is not None:
                bucket.resume(before)

    def pay(self, tokens: int) -> None:
        """Pay for tokens read and written."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def _refuse(self, bucket: RateBucket, what: str, code: str) -> None:
        wait = bucket.wait_s(1)
        if wait > 0:
            raise TooManyRequests(
                f"The API key '{self._name}' may use {bucket.per_minute} {what} per minute; "
                "they are used up.",
                code=code,
                retry_after_s=wait,
            )


Result = TypeVar("Result")

HELD_BYTES = 96 << 20
"""Of all bodies together."""
SHARE = 0.5
"""Of that, one key may hold."""
BYTES_PER_TOKEN = 16
"""Of a body, as it is charged before it is read: usual text has 4, so that few pay too much."""
TURNS = 2
"""Large requests that are prepared at a time."""
SMALL_BYTES = 64 << 10
"""A body of so many is parsed at once."""
RETRY_S = 2.0


@dataclass(eq=False, slots=True)
class RequestCharge:
    """What one request has been charged; ``close`` when its response is over."""

    budget: RequestBudget
    name: str | None = None
    """The key's public name."""
    quota: KeyQuota | None = None
    num_bytes: int = 0
    prepaid: int = 0
    """Tokens paid on account."""
    shares: int = 1
    """How many still need the bytes: the response, and a background run."""

    def hold(self, num_bytes: int) -> None:
        """More of the body is there, or of what it refers to. Raises TooManyRequests."""
        self.budget.hold(self.name, num_bytes)
        self.num_bytes += num_bytes

    def estimate(self) -> None:
        """Pay for the body before it is parsed."""
        self.prepaid += self.num_bytes // BYTES_PER_TOKEN
        self._pay(self.prepaid)

    def settle(self) -> None:
        """The true number of tokens is paid elsewhere: take the estimate back."""
        paid, self.prepaid = self.prepaid, 0
        self._pay(-paid)

    def extend(self) -> None:
        """Hold the bytes for a background run, too; it closes the charge once more."""
        self.shares += 1

    def close(self) -> None:
        """Give the bytes back when the last that needs them is over."""
        self.shares -= 1
        if self.shares == 0:
            self.budget.release(self.name, self.num_bytes)

    async def parse(self, work: Callable[[], Result]) -> Result:
        """The result of reading the body: off the event loop, in its turn, where it is large."""
        if self.num_bytes <= SMALL_BYTES:
            return work()
        async with self.budget.turn(self.name):
            return await asyncio.to_thread(work)

    def _pay(self, tokens: int) -> None:
        if self.quota is not None and tokens:
            self.quota.pay(tokens)


@dataclass(eq=False)
class RequestBudget:
    """One per gateway; one event loop."""

    held_bytes: int = HELD_BYTES
    turns: int = TURNS
    held: int = 0
    _of_keys: Counter[str | None] = field(default_factory=Counter)
    _taken: int = 0
    _waiting: dict[str | None, deque[asyncio.Future[None]]] = field(default_factory=dict)
    """By key, in the order of their next turn."""

    def open(self, name: str | None = None, quota: KeyQuota | None = None) -> RequestCharge:
        return RequestCharge(self, name, quota)

    def hold(self, name: str | None, num_bytes: int) -> None:
        """Raises TooManyRequests."""
        share = self.held_bytes if name is None else int(self.held_bytes * SHARE)
        if self.held + num_bytes > self.held_bytes or self._of_keys[name] + num_bytes > share:
            raise TooManyRequests(
                f"Too many bytes of requests are held: at most {self.held_bytes} of all clients "
                f"and {share} of this one. Come back after the time in Retry-After.",
                code="request_bytes_exceeded",
                retry_after_s=RETRY_S,
            )
        self.held += num_bytes
        self._of_keys[name] += num_bytes

    def release(self, name: str | None, num_bytes: int) -> None:
        self.held -= num_bytes
        self._of_keys[name] -= num_bytes
        if self._of_keys[name] <= 0:
            del self._of_keys[name]

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
        """To the key whose turn is next; it goes to the end of the line."""
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


charge: ContextVar[RequestCharge] = ContextVar("charge", default=RequestBudget(1 << 62).open())  # noqa: B039
"""Of the request at hand; set at the door."""


@dataclass(frozen=True, slots=True)
class Requester:
    """``name`` is the API key's public name, None without keys."""

    name: str | None = None
    priority: Priority = Priority.NORMAL
    quota: KeyQuota | None = None
    concurrency: int | None = None
    """Requests of this key at a time; None for no bound."""
    deadline: float | None = None
    """By the admission's clock; a request that cannot make it is refused."""
    weight: float = 1.0
    client: str = ""
    """The address of the client, which stands for a key where there are none."""

    @property
    def flow(self) -> str:
        """Whose share the request counts in."""
        return f"client {self.client}" if self.name is None else f"key {self.name}"
