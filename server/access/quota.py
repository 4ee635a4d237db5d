"""Quota of an API key: requests, tokens and images per minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eaglegate.server.errors import InvalidRequest, TooManyRequests

Clock = Callable[[], float]
MINUTE_S = 60.0
FADE = 0.9
"""Factor by which the remembered longest answer shrinks with each shorter answer."""
GUESS = 1 / 8
"""Share of the tokens per minute that is reserved for a key's first answer, if the request sets no
limit.
"""


class RateBucket:
    """Token bucket: holds up to ``per_minute``, refills at that rate, and can be overdrawn by the
    same amount.
    """

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        level = self._level + (now - self._at) * self.per_minute / MINUTE_S
        self._level, self._at = min(float(self.per_minute), level), now
        return self._level

    def wait_s(self, amount: float) -> float:
        """Return the seconds until ``amount`` is available; 0 if it is."""
        return max(0.0, (amount - self.level) * MINUTE_S / self.per_minute)

    def take(self, amount: float) -> float:
        """Take ``amount`` as far as the overdraft allows, and return the amount taken.

        A negative amount is returned to the bucket.
        """
        level = self.level
        self._level = min(float(self.per_minute), max(-float(self.per_minute), level - amount))
        return level - self._level

    def resume(self, predecessor: RateBucket) -> None:
        """Continue at the relative fill level of an earlier bucket."""
        self._level = self.per_minute * predecessor.level / predecessor.per_minute


@dataclass(frozen=True, slots=True)
class LimitState:
    """Current state of a limit. ``what`` is requests, tokens, images or concurrency."""

    what: str
    limit: int
    remaining: int
    full_s: float
    """Seconds until the limit is fully restored, if nothing is used."""


class KeyQuota:
    """Requests, tokens and images per minute of one key; None for no limit.

    A key may enter while its token bucket is not empty. A request reserves its prompt's tokens and
    the possible tokens of its answer, and settles when the answer ends. The debt is at most one
    minute's tokens, so no key is blocked for more than two minutes.
    """

    def __init__(
        self,
        name: str,
        requests: int | None = None,
        tokens: int | None = None,
        clock: Clock = time.monotonic,
        images: int | None = None,
    ) -> None:
        self._name = name
        self._requests = None if requests is None else RateBucket(requests, clock)
        self._tokens = None if tokens is None else RateBucket(tokens, clock)
        self._images = None if images is None else RateBucket(images, clock)
        self._longest: float | None = None
        """Length of the longest recent answer in tokens, fading over time; None before the first
        answer.
        """

    def take(self, prepaid: float = 0.0) -> None:
        """Pay for one request, which has already prepaid ``prepaid`` tokens. Raises
        TooManyRequests.
        """
        if self._tokens is not None:
            self._refuse(self._tokens, "tokens", "key_tokens_exceeded", 1 - prepaid)
        if self._requests is not None:
            self._refuse(self._requests, "requests", "key_requests_exceeded")
            self._requests.take(1)

    def take_images(self, num_images: int) -> None:
        """Pay for the images of a request. Raises TooManyRequests while they are not available, and
        InvalidRequest if they never will be.
        """
        if self._images is None or not num_images:
            return
        minute = self._images.per_minute
        if num_images > minute:
            raise InvalidRequest(
                f"The request has {num_images} images. The API key '{self._name}' may send "
                f"{minute} images per minute. Send fewer.",
                code="images_exceed_key_minute",
            )
        self._refuse(self._images, "images", "key_images_exceeded", num_images)
        self._images.take(num_images)

    def pay(self, tokens: float) -> float:
        """Pay for tokens, and return the number paid. A negative number is a refund."""
        return 0.0 if self._tokens is None else self._tokens.take(tokens)

    def reserve(self, prompt: int, answer: int | None) -> float:
        """Pay for a prompt and its answer, and return the number of tokens paid.

        ``answer`` is the request's own limit. Without one, the answer is assumed to be as long as
        the longest recent one. Raises TooManyRequests while the tokens are not available, and
        InvalidRequest if they never will be.
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
        """Record the length of an answer."""
        self._longest = max(tokens, FADE * (self._longest or 0.0))

    def describe(self) -> Iterator[LimitState]:
        """Yield the current state of each limit of the key."""
        buckets = {"requests": self._requests, "tokens": self._tokens, "images": self._images}
        for unit, bucket in buckets.items():
            if bucket is not None:
                limit, num_remaining = bucket.per_minute, max(0, int(bucket.level))
                yield LimitState(unit, limit, num_remaining, bucket.wait_s(limit))

    def resume(self, quota: KeyQuota) -> None:
        """Continue with the usage of the quota that this one replaces."""
        self._longest = quota._longest
        for bucket, predecessor in (
            (self._requests, quota._requests),
            (self._tokens, quota._tokens),
            (self._images, quota._images),
        ):
            if bucket is not None and predecessor is not None:
                bucket.resume(predecessor)

    def _refuse(self, bucket: RateBucket, unit: str, code: str, amount: float = 1) -> None:
        wait = bucket.wait_s(amount)
        if wait > 0:
            raise TooManyRequests(
                f"The API key '{self._name}' has used up its {bucket.per_minute} {unit} per "
                "minute. Retry after the time in Retry-After.",
                code=code,
                retry_after_s=wait,
            )
