"""Child process that reads what a client wrote, within limits of time and memory.

The child is a program that sets its own limits. It prints one line of JSON when it is ready, then
answers each input line ``NUMBER QUESTION`` with a line ``[NUMBER, ANSWER]``. A question is JSON, or
what the program reads instead. A line ``[NUMBER, ANSWER, SIZE]`` has so many bytes behind it. A
child that fails or is too slow is killed, and the next question starts another one.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from typing import Any

MAX_LINE_BYTES = 256 << 10
"""Longest line that a child may write."""
START_S = 180.0
EXIT_S = 5.0
"""Longest time between a child's last output and its exit, in seconds."""


class ChildLost(Exception):
    """The child ended without an answer. ``status`` is None if it was killed because it was too
    slow."""

    def __init__(self, status: int | None) -> None:
        super().__init__("no verdict in time" if status is None else name_exit(status))
        self.status = status


class LimitedChild:
    """Owner of one child, which answers one question at a time."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._number = 0
        self._child: asyncio.subprocess.Process | None = None

    async def aclose(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()

    @property
    def _is_running(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def _start(self) -> Any:
        """Start a child and return its first line. Raises ChildLost and TimeoutError."""
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_LINE_BYTES,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await child.stdout.readline()
        except BaseException:  # the caller left: do not keep a half-started child
            await self.aclose()
            raise
        if not line:
            status = await child.wait()
            self._child = None
            raise ChildLost(status)
        return json.loads(line)

    async def _ask(self, question: bytes, patience_s: float) -> Any:
        """Return the running child's answer, with its bytes if it says how many. Raises ChildLost.

        Answers are numbered, because the child may first answer for a caller that has left.
        """
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        self._number += 1
        with suppress(TimeoutError, ConnectionError, EOFError, json.JSONDecodeError):
            child.stdin.write(b"%d %s\n" % (self._number, question))
            async with asyncio.timeout(patience_s):
                while line := await child.stdout.readline():
                    number, answer, *sizes = json.loads(line)
                    data = [await child.stdout.readexactly(size) for size in sizes]
                    if number == self._number:
                        return (answer, *data) if data else answer
        status = await _wait_for_exit(child)
        await self.aclose()
        raise ChildLost(status)


async def _wait_for_exit(child: asyncio.subprocess.Process) -> int | None:
    """Return the exit status of a child that closed its output; None if the child still runs.

    The status must be awaited before the child is signalled. ``Popen.send_signal`` reaps a child
    that has ended, and asyncio then reports 255 instead of its status.
    """
    assert child.stdout is not None
    if child.returncode is None and child.stdout.at_eof():
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await child.wait()
    return child.returncode


def name_exit(code: int) -> str:
    """Return the signal that ended a process, or its exit status."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit status {code}"
