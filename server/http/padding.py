"""Padding of streamed frames, which hides their sizes.

The sizes of a stream's frames reveal how many tokens each step delivered, and so which drafts were
accepted, to anyone who sees the encrypted traffic (arXiv 2411.01076). With OpenAI's
``stream_options.include_obfuscation``, every frame with an object gets a member ``obfuscation`` of
random letters, which fills the frame up to the next multiple of ``BLOCK`` bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from eaglegate.engine.events import Event
from eaglegate.server.errors import GatewayError
from eaglegate.server.http.response import StreamEncoder

BLOCK = 512
MEMBER = b',"obfuscation":"%b"}'
END = b"\n\n"


def make_filling(size: int) -> bytes:
    """Return random letters, which cannot be compressed."""
    return secrets.token_urlsafe(size)[:size].encode()


def pad_frames(data: bytes) -> bytes:
    """Pad every frame that ends with an object. Comments and ``[DONE]`` stay unchanged."""
    frames = data.split(END)
    return END.join([*map(_pad, frames[:-1]), frames[-1]])


def _pad(frame: bytes) -> bytes:
    if not frame.endswith(b"}"):
        return frame
    min_size = len(frame) - 1 + len(MEMBER) - 2 + len(END)
    num_missing = -min_size % BLOCK
    return frame[:-1] + MEMBER % make_filling(num_missing)


async def pad_each(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield frames that are already encoded, padded. Closes ``frames`` at the end."""
    async with aclosing(frames) as source:
        async for frame in source:
            yield pad_frames(frame)


@dataclass(frozen=True, slots=True)
class PaddedStream:
    """Stream encoder whose frames are padded to multiples of ``BLOCK`` bytes."""

    encoder: StreamEncoder

    def encode(self, choice: int, events: list[Event]) -> bytes:
        return pad_frames(self.encoder.encode(choice, events))

    def close(self) -> bytes:
        return pad_frames(self.encoder.close())

    def fail(self, error: GatewayError) -> bytes:
        return pad_frames(self.encoder.fail(error))
