"""Response headers that show a key's limits under OpenAI's names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from starlette.types import Message, Send

from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.quota import LimitState

Headers = list[tuple[bytes, bytes]]


def add_rate_limits(send: Send, key: ApiKey, count_places: Callable[[], int]) -> Send:
    """Return a ``send`` that adds the limits of ``key`` to the response headers.

    ``count_places`` returns the number of answers that the key has in flight.
    """

    def send_with_limits(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), *_list_headers(key, count_places())]
            message = {**message, "headers": headers}
        return send(message)

    return send_with_limits


def _list_headers(key: ApiKey, places: int) -> Iterator[tuple[bytes, bytes]]:
    for state in key.quota.describe() if key.quota is not None else ():
        yield from _describe_state(state)
        yield b"x-ratelimit-reset-" + state.what.encode(), _format_duration(state.full_s)
    if key.concurrency is not None:
        num_remaining = max(0, key.concurrency - places)
        yield from _describe_state(LimitState("concurrency", key.concurrency, num_remaining, 0))


def _describe_state(state: LimitState) -> Headers:
    unit = state.what.encode()
    return [
        (b"x-ratelimit-limit-" + unit, b"%d" % state.limit),
        (b"x-ratelimit-remaining-" + unit, b"%d" % state.remaining),
    ]


def _format_duration(seconds: float) -> bytes:
    """Format a duration like OpenAI: 20ms, 1.5s, 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, remainder = divmod(milliseconds / 1000, 60)
    prefix = f"{int(minutes)}m" if minutes else ""
    return f"{prefix}{round(remainder, 3):g}s".encode()
