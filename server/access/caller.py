"""Caller of a request: its API key, the key's quota, and its identity in admission."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from eaglegate.server.access.fair_order import Priority
from eaglegate.server.errors import InvalidRequest, TooManyRequests

Clock = Callable[[], float]
MINUTE_S = 60.0
FADE = 0.9
"""Factor by which the longest answer's weight shrinks with every shorter answer."""
GUESS = 1 / 8
"""The share of its minute that a key's first answer is taken for, where it has no bound."""


class RateBucket:
    """Holds up to ``per_minute``, fills at that rate, and can be overdrawn by as much."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        filled = self._level + (now - self._at) * self.per_minute / MINUTE_S
        self._level, self._at = min(float(self.per_minute), filled), now
        return self._level

    def wait_s(self, amount: float) -> float:
        """Seconds until ``amount`` is there; 0 when it is."""
        return max(0.0, (amount - self.level) * MINUTE_S / self.per_minute)

    def take(self, amount: float) -> float:
        """Take ``amount``, or as much of it as may be overdrawn; how much that was.

        What is negative is given back.
        """
        before = self.level
        self._level = min(float(self.per_minute), max(-float(self.per_minute), before - amount))
        return before - self._level

    def resume(self, earlier: RateBucket) -> None:
        """Continue with what an earlier bucket has used, in the same share of the minute."""
        self._level = self.per_minute * earlier.level / earlier.per_minute


@dataclass(frozen=True, slots=True)
class LimitState:
    """Remainder of a limit. ``what`` is requests, tokens or concurrency."""

    what: str
    limit: int
    remaining: int
    full_s: float
    """Seconds until all of it is there again, if nothing is used."""


class KeyQuota:
    """Requests and tokens per minute of one key; None for no limit.

    A key may enter while its bucket of tokens is not empty. A request reserves the tokens of its
    prompt and those that its answer may have, and settles when the answer is over. Debts are at
    most one minute's tokens, so that no key is locked for longer than two.
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
        self._longest: float | None = None
        """Tokens of the longest of the last answers; None before the first."""

    def take(self, prepaid: float = 0.0) -> None:
        """Pay for one request, which has paid so many tokens already. Raises TooManyRequests."""
        if self._tokens is not None:
            self._refuse(self._tokens, "tokens", "key_tokens_exceeded", 1 - prepaid)
        if self._requests is not None:
            self._refuse(self._requests, "requests", "key_requests_exceeded")
            self._requests.take(1)

    def pay(self, tokens: float) -> float:
        """Pay for tokens, or take back what is negative; how many it was."""
        return 0.0 if self._tokens is None else self._tokens.take(tokens)

    def reserve(self, prompt: int, answer: int | None) -> float:
        """Pay for a prompt and for its answer; how many tokens it was.

        ``answer`` is the most that the request asks for; without it, the answer is taken to be as
        long as the longest of the last ones. Raises TooManyRequests while there is no room, and
        InvalidRequest where there never will be.
        """
        if self._tokens is None:
            return 0.0
        minute = self._tokens.per_minute
        if prompt > 2 * minute:
            raise InvalidRequest(
                f"The prompt has {prompt} tokens. The API key '{self._name}' may use {minute} "
                f"tokens per minute, so that a prompt may have at most {2 * minute}.",
                code="prompt_exceeds_key_tokens",
            )
        self._refuse(self._tokens, "tokens", "key_tokens_exceeded", max(1, prompt - minute))
        if answer is None:
            answer = int(minute * GUESS if self._longest is None else self._longest)
        return self._tokens.take(prompt + min(answer, minute))

    def note_answer(self, tokens: int) -> None:
        """An answer was this long."""
        self._longest = max(tokens, FADE * (self._longest or 0.0))

    def describe(self) -> Iterator[LimitState]:
        """Yield the remainder of each limit of the key."""
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                limit, left = bucket.per_minute, max(0, int(bucket.level))
                yield LimitState(what, limit, left, bucket.wait_s(limit))

    def resume(self, earlier: KeyQuota) -> None:
        """Continue where the quota that this one replaces has come to."""
        self._longest = earlier._longest
        for bucket, before in (
            (self._requests, earlier._requests),
            (self._tokens, earlier._tokens),
        ):
            if bucket is not None and before is not None:
                bucket.resume(before)

    def _refuse(self, bucket: RateBucket, what: str, code: str, needed: float = 1) -> None:
        wait = bucket.wait_s(needed)
        if wait > 0:
            raise TooManyRequests(
                f"The API key '{self._name}' has used up its {bucket.per_minute} {what} per "
                "minute. Retry after the time in Retry-After.",
                code=code,
                retry_after_s=wait,
            )


@dataclass(frozen=True, slots=True)
class Requester:
    """``name`` is the API key's public name, None without keys."""

    name: str | None = None
    priority: Priority = Priority.NORMAL
    quota: KeyQuota | None = None
    concurrency: int | None = None
    """Requests of this key at a time; None for no bound."""
    deadline: float | None = None
    """Deadline by admission's clock. A request that cannot meet it is refused."""
    weight: float = 1.0
    client: str = ""
    """The address of the client, which stands for a key where there are none."""

    @property
    def flow(self) -> str:
        """Whose share the request counts in."""
        return f"client {self.client}" if self.name is None else f"key {self.name}"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key; ``name`` is what logs, metrics and rules know it by."""

    name: str
    digest: bytes
    priority: Priority = Priority.NORMAL
    weight: float = 1.0
    """Share of the places relative to other keys of the class."""
    models: frozenset[str] | None = None
    """None for all."""
    concurrency: int | None = None
    quota: KeyQuota | None = None
    depth: int | None = None
    expires: float | None = None
    """Unix time."""
    admin: bool = False
    latency_ms: float | None = None
    """Milliseconds per output token that the key's latency class keeps, 0 for no objective in
    milliseconds; None for keys of no latency class."""
    step_weight: float = 1.0
    """Share in steps beside a latency class."""
    named: bool = True
    """An operator chose the name; otherwise it is derived from the hash."""

    @property
    def owner(self) -> str:
        """Whom stored responses belong to: stable whatever other keys there are.

        A named key keeps what it owns when its secret changes.
        """
        return f"key:{self.name}" if self.named else f"sha256:{self.digest.hex()}"

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Caller:
    """``key`` is None where no keys are configured; ``timeout_s`` None without a deadline."""

    key: ApiKey | None = None
    timeout_s: float | None = None
    session: str | None = None
    """Client's name for the session that the request belongs to."""
    client: str = ""
    """The client's address, or the network it counts as one of."""

    def to_requester(self, deadline: float | None = None) -> Requester:
        """Return the identity under which admission counts this caller."""
        if self.key is None:
            return Requester(deadline=deadline, client=self.client)
        key = self.key
        return Requester(
            key.name, key.priority, key.quota, key.concurrency, deadline, key.weight, self.client
        )


current_caller: ContextVar[Caller] = ContextVar("current_caller", default=Caller())  # noqa: B039
"""Caller of the current request, set by the authentication middleware and read once per job."""
