"""Reading a request body without trusting its size."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from server.access.budget import charge
from server.errors import BodyTooLarge, InvalidRequest


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, charged. Raises BodyTooLarge as soon as it passes ``limit`` bytes."""
    current = charge.get()
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise _body_too_large(limit, int(declared))
    body = bytearray()
    try:
        async for chunk in request.stream():
            if len(body) + len(chunk) > limit:
                raise _body_too_large(limit, len(body) + len(chunk))
            current.hold(len(chunk))
            body += chunk
    except ClientDisconnect:
        raise InvalidRequest("The client left while sending the body.") from None
    current.estimate()
    return bytes(body)


def _body_too_large(limit: int, given: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body may have at most {limit} bytes (--max-body-bytes); given {given} or more."
    )
