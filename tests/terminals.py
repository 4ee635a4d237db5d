"""A program in a pseudo-terminal: what it writes, and keys for it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.conftest import ROOT

ESCAPES = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[PX^_].*?\x1b\\|.)", re.S
)


class TerminalProcess:
    """``process`` and everything it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], end: int) -> None:
        self.process, self._end = process, end
        self.written = ""

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def read_until(self, words: str, limit_s: float = 60.0) -> str:
        """The output from now on to these words, without escape sequences."""
        begun, deadline = len(self.written), time.monotonic() + limit_s
        while words not in (text := ESCAPES.sub("", self.written[begun:])):
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} is not in {text[-3000:]!r}"
            if select.select([self._end], [], [], left)[0]:
                self._read(words)
        return text

    def _read(self, words: str) -> None:
        try:
            data = os.read(self._end, 1 << 16)
        except OSError:  # its side is closed
            data = b""
        assert data, f"it ended before {words!r}: {ESCAPES.sub('', self.written)[-3000:]!r}"
        self.written += data.decode(errors="replace")

    def wait(self, limit_s: float = 30.0) -> int:
        """Read the rest of its output; return its exit status."""
        with suppress(AssertionError):
            self.read_until("\0never\0", limit_s)
        return self.process.wait(limit_s)


@contextmanager
def terminal(
    arguments: Sequence[str], size: tuple[int, int] = (100, 40), **environment: str
) -> Iterator[TerminalProcess]:
    """``eaglegate ARGUMENTS`` in a terminal of so many columns and rows, until the block ends."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    process = subprocess.Popen(
        [sys.executable, "-m", "eaglegate.server", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True,
        env=os.environ | {"PYTHONPATH": path, "TERM": "xterm-256color"} | environment,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    try:
        yield TerminalProcess(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
