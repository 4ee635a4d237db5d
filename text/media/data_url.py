"""data: URLs with base64 (RFC 2397), as clients write them."""

from __future__ import annotations

import binascii

WHITESPACE = b" \t\r\n\f"
ESCAPED = "+/=\n\r "
"""Characters that may be percent-encoded. A general decoder would need seconds for a URL that is
nothing but escapes.
"""
FORM = "data:image/png;base64,..."


def read_data_url(url: str, max_bytes: int) -> bytes:
    """Return the data of a data: URL.

    Its media type is ignored. Line breaks, missing padding and percent-encoding are accepted.
    Raises ValueError with a message for the client, before the data is decoded if it is too long.
    """
    head, comma, payload = url.partition(",")
    if not comma or head.rpartition(";")[2].strip().lower() != "base64":
        raise ValueError(f"A data: URL has the form {FORM}; this one has no ';base64,'.")
    encoded = _clean(payload)
    num_bytes = len(encoded) * 3 // 4
    if num_bytes > max_bytes:
        raise ValueError(
            f"An image may have at most {max_bytes} bytes; this one has {num_bytes}. Send a "
            "smaller one."
        )
    if len(encoded) % 4 == 1:
        raise ValueError(
            "The base64 of a data: URL has 2 to 4 characters at its end; this one has 1. Send all "
            "of it."
        )
    try:
        return binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
    except binascii.Error:
        raise _wrong_character() from None


def _clean(payload: str) -> bytes:
    """Return base64 without padding, white space and percent-encoding."""
    if "%" in payload:
        for character in ESCAPED:
            for code in (f"%{ord(character):02X}", f"%{ord(character):02x}"):
                payload = payload.replace(code, character)
    try:
        return payload.encode("ascii").translate(None, WHITESPACE).rstrip(b"=")
    except UnicodeEncodeError:
        raise _wrong_character() from None


def _wrong_character() -> ValueError:
    return ValueError(
        "The base64 of a data: URL has letters, digits, '+' and '/'; this one has another "
        "character. Encode it again."
    )
