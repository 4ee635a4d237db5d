"""Costs of a request before it reaches the engine, charged before the work is done.

Reading, rendering and tokenizing requests uses three resources, each of which is bounded here:
*bytes* of bodies held in memory, *tokens* of the key's rate limit, and *turns* for requests that
occupy a thread or a process for long. Bytes count from the first one received until the response
ends. Turns rotate among the keys, so that many large requests of one key delay another key's
request by at most one turn.

Tokens are paid in advance: first an estimate from the body's size, then the prompt's tokens and a
reservation for the answer. When the request ends, it settles for the tokens that it used. A request
refused before its prompt is tokenized, or for its number of tokens, pays nothing. A request refused
for another reason pays the estimate.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import InvalidRequest, TooManyRequests

Result = TypeVar("Result")

HELD_BYTES = 96 << 20
"""Bytes that all request bodies together may hold."""
READ_BYTES = 64 << 20
"""Bytes that clients reading stored answers may hold together. Slow readers do not block request
bodies.
"""
SHARE = 0.5
"""Share of either limit that one key may use."""
BYTES_PER_TOKEN = 16
"""Bytes of a body charged as one token before it is parsed. Text usually has 4 bytes per token, so
the estimate is rarely too high.
"""
ECHO_BYTES = 8
LOGPROB_BYTES = 64
"""Bytes of JSON in an answer that repeats its prompt, for each token and each log probability."""
PIXEL_BYTES = 16
"""Bytes of memory that a pixel takes while it is decoded, as a WebP with transparency does."""
TURNS = 2
"""Number of large requests that are prepared at the same time."""
SMALL_BYTES = 64 << 10
"""Bodies up to this size are parsed immediately on the event loop."""
RETRY_S = 2.0


@dataclass(eq=False, slots=True)
class RequestCharge:
    """Charges of one request. Call ``close`` when its response ends."""

    budget: RequestBudget
    name: str | None = None
    """Public name of the API key."""
    quota: KeyQuota | None = None
    num_bytes: int = 0
    num_stored: int = 0
    prepaid: float = 0.0
    """Tokens paid in advance."""
    estimated: float = 0.0
    """The estimate in tokens, due once the prompt is tokenized."""
    shares: int = 1
    """Number of users of the bytes: the response, and possibly a background run."""

    def hold(self, num_bytes: int) -> None:
        """Charge further bytes of the body, or of stored objects it refers to. Raises
        TooManyRequests.
        """
        self.budget.bodies.hold(self.name, num_bytes)
        self.num_bytes += num_bytes

    def take_images(self, num_images: int) -> None:
        """Pay for images before they are read. Raises TooManyRequests and InvalidRequest."""
        if self.quota is not None:
            self.quota.take_images(num_images)

    def check_pixels(self, num_pixels: int) -> None:
        """Raise Unavailable if memory has no room for an image that is decoded now."""
        self.budget.check_memory(PIXEL_BYTES * num_pixels)

    def check_echo(self, num_tokens: int, logprobs: int) -> int:
        """Return the bytes of an answer's copy of so many prompt tokens, each with ``logprobs`` log
        probabilities. Raises InvalidRequest if they never fit.
        """
        num_bytes = num_tokens * (ECHO_BYTES + LOGPROB_BYTES * logprobs)
        limit = self.budget.bodies.share(self.name)
        if num_bytes > limit:
            raise InvalidRequest(
                f"The answer would repeat at least {num_tokens} prompt tokens with {logprobs} log "
                f"probabilities each, about {num_bytes} bytes; at most {limit} are possible. Send "
                "fewer prompts, or lower 'n', 'logprobs' or 'prompt_logprobs'.",
                code="echo_too_large",
            )
        return num_bytes

    def hold_echo(self, num_tokens: int, logprobs: int) -> None:
        """Charge an answer's copy of its prompts before the engine makes it.

        Raises InvalidRequest if it never fits, TooManyRequests, and Unavailable.
        """
        num_bytes = self.check_echo(num_tokens, logprobs)
        self.budget.check_memory(3 * num_bytes)  # the parts of the answer, and the whole
        self.hold(num_bytes)

    def hold_stored(self, num_bytes: int) -> None:
        """Charge the bytes of a stored answer that is sent to a client. Raises TooManyRequests."""
        self.budget.stored.hold(self.name, num_bytes)
        self.num_stored += num_bytes

    def estimate(self) -> None:
        """Pay an estimate for the body before it is parsed, at most the longest possible prompt."""
        if self.quota is not None:
            tokens = min(self.num_bytes // BYTES_PER_TOKEN, self.budget.longest_prompt)
            self.prepaid += self.quota.pay(tokens)

    def begin_tokenizing(self) -> None:
        """Make the estimate due: its work is now done, whatever happens to the request."""
        self.estimated = self.prepaid

    def reserve(self, prompt: int, answer: int | None) -> None:
        """Pay for the prompt and its answer, in place of the estimate.

        Raises TooManyRequests and InvalidRequest (``KeyQuota.reserve``). Nothing is paid then,
        since a payment would make the Retry-After too short.
        """
        if self.quota is not None:
            self._settle(0)
            self.prepaid = self.quota.reserve(prompt, answer)

    def settle(self, prompt: int, answer: int) -> None:
        """Replace the advance payment by the tokens that the finished request used."""
        self._settle(prompt + answer)
        self.estimated = 0
        if self.quota is not None:
            self.quota.note_answer(answer)

    def extend(self) -> None:
        """Keep the bytes for a background run as well, which calls ``close`` once more."""
        self.shares += 1

    def close(self) -> None:
        """Release the bytes and unsettled tokens when the last user is done."""
        self.shares -= 1
        if self.shares == 0:
            self.budget.bodies.release(self.name, self.num_bytes)
            self.budget.stored.release(self.name, self.num_stored)
            if self.prepaid:
                self._settle(self.estimated)

    async def parse(self, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``, which parses the body. A large body is parsed in a thread
        when its key has a turn.
        """
        if self.num_bytes <= SMALL_BYTES:
            return work()
        async with self.budget.turn(self.name):
            return await asyncio.to_thread(work)

    def _settle(self, tokens: float) -> None:
        """Replace the advance payment by ``tokens``."""
        prepaid, self.prepaid = self.prepaid, 0
        if self.quota is not None:
            self.quota.pay(tokens - prepaid)


@dataclass(eq=False)
class HeldBytes:
    """Bytes of one kind held in memory, limited in total and per key."""

    kind: str
    most: int
    total: int = 0
    _of_keys: Counter[str | None] = field(default_factory=Counter)

    def share(self, name: str | None) -> int:
        """Return the bytes that one key may hold."""
        return self.most if name is None else int(self.most * SHARE)

    def hold(self, name: str | None, num_bytes: int) -> None:
        """Charge bytes to a key. Raises TooManyRequests."""
        share = self.share(name)
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
class KeyTurns:
    """Turns of one kind of work. They rotate among the keys."""

    turns: int = TURNS
    _taken: int = field(default=0, init=False)
    _waiting: dict[str | None, deque[asyncio.Future[None]]] = field(
        default_factory=dict, init=False
    )
    """Waiting requests by key. Keys are in the order of their next turns."""

    @asynccontextmanager
    async def turn(self, name: str | None) -> AsyncIterator[None]:
        """Wait for this key's turn, and hold it inside the context."""
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
        """Pass the turn to the next key, and move that key to the end of the line."""
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


@dataclass(eq=False)
class RequestBudget(KeyTurns):
    """Budget shared by all requests of a gateway. All calls come from one event loop."""

    held_bytes: int = HELD_BYTES
    longest_prompt: int = 1 << 62
    """Context length of the model in tokens, set once it is known."""
    read_bytes: int = READ_BYTES
    check_memory: Callable[[int], None] = lambda _: None
    """Raises Unavailable if so many bytes would exceed the limit of memory."""

    def __post_init__(self) -> None:
        self.bodies = HeldBytes("requests", self.held_bytes)
        self.stored = HeldBytes("stored answers that are being read", self.read_bytes)

    @property
    def held(self) -> int:
        """Bytes held by request bodies."""
        return self.bodies.total

    def open(self, name: str | None = None, quota: KeyQuota | None = None) -> RequestCharge:
        return RequestCharge(self, name, quota)
