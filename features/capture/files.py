"""Capture files: written off the event loop, bounded in size and age, and read back by commands.

One thread empties a bounded queue once per second: waking it for each request would cost more than
the writing. Records that do not fit or cannot be written are dropped and counted; requests never
wait. A record is one ``write``. A partly written record, as on a full disk, is removed again. Files
are named ``capture-TIME-PID-N.jsonl`` and have mode 0600, in a folder of mode 0700. ``audits.py``
uses the same writer for files whose names begin with ``audits``.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from eaglegate.features.capture.limits import PARTS, CaptureLimits
from eaglegate.observability.captures.files import RECORDS, SUFFIXES

logger = logging.getLogger(__name__)

QUEUE_REQUESTS = 2048
QUEUE_BYTES = 64 << 20
GATHER_S = 1.0
"""Seconds between two batches of writes."""
PRUNE_EVERY_S = 60.0
RETRY_S = 10.0
"""Seconds after a failed write during which records are dropped before the disk is tried again."""
LOG_EVERY_S = 60.0
CLOSE_S = 5.0

QUEUE, DISK, SIZE, SLOW, FAULT = REASONS = ("queue", "disk", "size", "slow", "fault")
"""Reasons for dropping a record."""


class RecordDropped(Exception):
    """The formatter refuses to write a record. ``reason`` is for the metric, the message for the
    log.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def make_private(directory: Path) -> None:
    """Create the folder, or remove other users' access to it and its captures. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _tighten(directory, 0o700)
    for path in directory.iterdir():
        if path.name.endswith(SUFFIXES):
            _tighten(path, 0o600)


def _tighten(path: Path, mode: int) -> None:
    if not is_open_to_others(path):
        return
    with suppress(PermissionError):
        path.chmod(mode)
    if is_open_to_others(path):
        raise OSError(
            f"{path} is open to other users, and its mode cannot be changed to {mode:o}: "
            "give a folder that belongs to the gateway's user, or one that does not exist yet"
        )


def is_open_to_others(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


class CaptureFolder:
    """The files of one writer, and the age and size of all files in its folder."""

    def __init__(
        self,
        directory: Path,
        limits: CaptureLimits,
        wall: Callable[[], float] = time.time,
        content: str = RECORDS,
    ) -> None:
        """Open the folder, creating it if needed. Raises OSError."""
        make_private(directory)
        self._directory = directory
        self.limits = limits
        self._wall, self._content = wall, content
        self._file = -1
        self._path = directory
        self._size = 0
        self._opened = 0.0
        self._others = 0
        """Total bytes of all other files when last counted."""
        self._pruned = 0.0
        self._number = 0
        self.prune()

    def open_sibling(self, content: str) -> CaptureFolder:
        """Return a folder object for another writer's files in the same folder. Raises OSError."""
        return CaptureFolder(self._directory, self.limits, self._wall, content)

    def append(self, line: bytes) -> None:
        """Write one record in one system call, unless the disk fills up.

        Raises OSError and leaves no part of the record in the file.
        """
        if self._file < 0 or self._is_full(len(line)):
            self._open_next()
        if self._others + self._size + len(line) > self.limits.max_bytes or (
            self._wall() - self._pruned > PRUNE_EVERY_S
        ):
            self.prune(len(line))
        try:
            remainder = line
            while remainder:
                remainder = remainder[os.write(self._file, remainder) :]
        except OSError:
            self._take_back()
            raise
        self._size += len(line)

    def _is_full(self, num_bytes: int) -> bool:
        is_old = self._wall() - self._opened > self.limits.max_age_s / PARTS
        is_large = self._size > 0 and self._size + num_bytes > self.limits.part_bytes
        return is_old or is_large or os.fstat(self._file).st_nlink == 0

    def _open_next(self) -> None:
        self.close()
        self._number += 1
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._wall()))
        name = f"{self._content}-{stamp}-{os.getpid()}-{self._number:04}.jsonl"
        path = self._directory / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._path, self._size, self._opened = path, 0, self._wall()
        self.prune()

    def _take_back(self) -> None:
        """Remove a partly written record; if that fails, close the file so that the next record
        starts a new one.
        """
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self.close()

    def prune(self, num_bytes: int = 0) -> None:
        """Delete the oldest files until ``num_bytes`` more fit, and every file beyond its age."""
        self._pruned = now = self._wall()
        parts = []
        for path in self._directory.iterdir():
            if path.name.endswith(SUFFIXES) and not (self._file >= 0 and path == self._path):
                try:
                    parts.append((path.stat().st_mtime, path.name, path.stat().st_size, path))
                except FileNotFoundError:
                    continue
        self._others = sum(size for _, _, size, _ in parts)
        for modified_at, _, size, path in sorted(parts):
            fits = self._others + self._size + num_bytes <= self.limits.max_bytes
            if fits and now - modified_at <= self.limits.max_age_s:
                break
            path.unlink(missing_ok=True)
            self._others -= size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class CaptureWriter:
    """Writes items on its own thread. ``put`` never waits; ``format`` turns an item into a line."""

    def __init__(self, folder: CaptureFolder, format: Callable[[Any], bytes]) -> None:
        self._folder = folder
        self._format = format
        self._queue: deque[tuple[Any, int]] = deque()
        self._ready, self._closing = Event(), Event()
        self._put_bytes = self._taken_bytes = 0
        self.records = 0
        self.bytes = 0
        self.dropped = Counter(dict.fromkeys(REASONS, 0))
        self._retry_at = 0.0
        self._log_at = 0.0
        self._thread = self._start()

    def _start(self) -> Thread:
        thread = Thread(target=self._run, name="capture", daemon=True)
        thread.start()
        return thread

    def put(self, item: Any, size: int) -> None:
        """Queue an item. ``size`` is its approximate memory in bytes."""
        num_waiting = self._put_bytes - self._taken_bytes
        if num_waiting + size > QUEUE_BYTES or len(self._queue) >= QUEUE_REQUESTS:
            self._drop(QUEUE, "the writer is behind")
            return
        self._queue.append((item, size))
        self._put_bytes += size
        if not self._thread.is_alive() and not self._closing.is_set():
            logger.error("capture writer thread died; starting a new one")
            self._thread = self._start()
        if not self._ready.is_set():
            self._ready.set()

    def close(self) -> None:
        """Write the queued items, for at most a few seconds."""
        self._closing.set()
        self._ready.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._ready.wait()
            self._closing.wait(GATHER_S)
            self._ready.clear()
            self._write_all()
        self._write_all()  # items queued since the last pass
        self._folder.close()

    def _write_all(self) -> None:
        while self._queue:
            item, size = self._queue.popleft()
            self._taken_bytes += size
            try:
                self._write(item)
            except RecordDropped as drop:
                self._drop(drop.reason, str(drop))
            except Exception as error:
                self._drop(FAULT, type(error).__name__)

    def _write(self, item: Any) -> None:
        if time.monotonic() < self._retry_at:
            self._drop(DISK, "the last write failed")
            return
        line = self._format(item) + b"\n"
        if len(line) > self._folder.limits.part_bytes:
            self._drop(SIZE, f"{len(line)} bytes are more than a file may hold")
            return
        try:
            self._folder.append(line)
        except OSError as error:
            self._retry_at = time.monotonic() + RETRY_S
            self._drop(DISK, os.strerror(error.errno) if error.errno else str(error))
            return
        self.records += 1
        self.bytes += len(line)

    def _drop(self, reason: str, message: str) -> None:
        self.dropped[reason] += 1
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_EVERY_S
            total = self.dropped.total()
            logger.warning("capture dropped a request: %s (%d since the start)", message, total)
