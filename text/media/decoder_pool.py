"""Child processes that decode images; see ``text/media/decoder.py``."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from eaglegate.text.limited_child import ChildLost, LimitedChild
from eaglegate.text.media.image import ImageFormat
from eaglegate.text.media.source import ImageReaderLost

log = logging.getLogger(__name__)

DECODER = "eaglegate.text.media.decoder"
"""The module that a child runs."""
PROCESSES = 2
CPU_S = 3.0
"""CPU seconds for one image. A WebP with 32 megapixels of noise takes 1.2."""
PATIENCE_S = 30.0
"""Longest wait for a child, which may have to wait for the CPU."""
ATTEMPTS = 2
RETRY_S = 1.0
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals of a crash in a decoder, which would repeat with the same image."""
TOO_SLOW = "An image must be quick to decode; this one took too long. Encode it again."
CRASH = "An image must be whole; this one crashed its decoder. Encode it again."
Answer = tuple[list[int] | str, bytes]


class DecoderPool:
    """Decoder of few images at a time, in the order of their arrival."""

    def __init__(self, max_pixels: int, num_processes: int = PROCESSES) -> None:
        command = (sys.executable, "-m", DECODER, str(max_pixels), str(CPU_S))
        self._idle = [_Decoder(command) for _ in range(num_processes)]
        self._turns = asyncio.Semaphore(len(self._idle))

    async def decode(
        self, data: bytes, name: ImageFormat, task: str
    ) -> tuple[tuple[int, int], bytes]:
        """Return an image's width and height, and its pixels if the task is a size.

        For the tasks see ``text/media/decoder.py``. Raises ValueError with a message for the client
        if the image is refused, and ImageReaderLost. Cancelling the call ends the work on the
        image.
        """
        question = f"{len(data)} {name.upper()} {task}\n".encode() + data
        async with self._turns:
            decoder = self._idle.pop()
            try:
                answer, pixels = await decoder.ask(question)
            finally:
                self._idle.append(decoder)
        if isinstance(answer, str):
            raise ValueError(answer)
        width, height = answer
        return (width, height), pixels

    async def aclose(self) -> None:
        for decoder in self._idle:
            await decoder.aclose()


class _Decoder(LimitedChild):
    async def ask(self, question: bytes) -> Answer:
        """Return the child's answer. A lost child may not be the image's fault, so retry once.

        Raises ImageReaderLost.
        """
        status = None
        for _ in range(ATTEMPTS):
            try:
                if not self._is_running:
                    await self._start()
                answer: Answer = await self._ask(question, PATIENCE_S)
                return answer
            except asyncio.CancelledError:
                await self.aclose()
                raise
            except (ChildLost, TimeoutError) as error:
                status = error.status if isinstance(error, ChildLost) else None
                if status == -signal.SIGPROF:
                    return TOO_SLOW, b""
                log.warning("a process that decodes images ended: %s", error)
        if status is not None and -status in CRASHES:
            return CRASH, b""
        raise ImageReaderLost(
            f"The process that decodes images ended {ATTEMPTS} times. Try again.", RETRY_S
        )
