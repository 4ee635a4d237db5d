"""What one API key may use per minute: buckets that fill steadily and say when to come back."""

from __future__ import annotations

import time
from collections.abc import Callable

from server.errors import TooManyRequests

Clock = Callable[[], float]
MINUTE_S = 60.0


class Bucket:
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

    def _now(self) -> float:
        now = self._clock()
        filled = self._level + (now - self._at) * self.per_minute / MINUTE_S
        self._level, self._at = min(float(self.per_minute), filled), now
        return self._level


class Quota:
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
        self._requests = None if requests is None else Bucket(requests, clock)
        self._tokens = None if tokens is None else Bucket(tokens, clock)

    def take(self) -> None:
        """Pay for one request. Raises TooManyRequests."""
        if self._tokens is not None:
            self._refuse(self._tokens, "tokens", "key_tokens_exceeded")
        if self._requests is not None:
            self._refuse(self._requests, "requests", "key_requests_exceeded")
            self._requests.take(1)

    def pay(self, tokens: int) -> None:
        """Pay for tokens read and written."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def _refuse(self, bucket: Bucket, what: str, code: str) -> None:
        wait = bucket.wait_s(1)
        if wait > 0:
            raise TooManyRequests(
                f"The API key '{self._name}' may use {bucket.per_minute} {what} per minute; "
                "they are used up.",
                code=code,
                retry_after_s=wait,
            )
