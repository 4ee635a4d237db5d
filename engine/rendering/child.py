"""The program that writes prompts whose template or size is not to be trusted: it can be ended.

Each job on standard input is its length in 8 bytes and JSON; so is each answer on standard output:
``["text", ...]`` or ``["refused", why]``. A job that takes too long is ended by the kernel with the
process, one that takes too much memory fails.
"""

from __future__ import annotations

import resource
import signal
import sys
from functools import lru_cache
from typing import BinaryIO

import orjson

from engine.rendering.template import ChatTemplate
from engine.rendering.writing import TemplateInput

CPU_S = 5.0
"""For one prompt; the longest of a real conversation takes a tenth."""
MEMORY_BYTES = 1 << 30
MAX_CHARS = 32 << 20
"""In a prompt: four times the largest body."""


def read_message(stream: BinaryIO) -> bytes:
    """One message; empty at the end."""
    size = stream.read(8)
    return stream.read(int.from_bytes(size, "big")) if len(size) == 8 else b""


def write_message(stream: BinaryIO, message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big"))
    stream.write(message)
    stream.flush()


def run_job(job: bytes) -> tuple[str, str]:
    try:
        writing = TemplateInput(**orjson.loads(job))
        text = writing.write(compile_template(writing.source))
    except (MemoryError, OverflowError):
        return "refused", "it needed too much memory"
    except (ValueError, RecursionError) as error:
        return "refused", str(error)[:1000]
    if len(text) > MAX_CHARS:
        return "refused", f"it wrote more than {MAX_CHARS} characters"
    return "text", text


@lru_cache(maxsize=8)
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while job := read_message(sys.stdin.buffer):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        made = orjson.dumps(run_job(job))
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_message(sys.stdout.buffer, made)


if __name__ == "__main__":
    main()
