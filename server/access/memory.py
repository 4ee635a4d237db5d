"""Memory monitoring: above a bound, new work is refused before the kernel kills the process.

The bound is a share of the available memory: the control group's limit, ``--memory-limit``, or the
machine's memory. If the started engine alone exceeds that share, everything would be refused; the
bound is then half way between its use and the limit. While no request is in flight, one is always
admitted, since refusing it would free nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from eaglegate.engine.machine import read_text
from eaglegate.server.errors import Unavailable

log = logging.getLogger(__name__)

GIB = 1024**3
SHARE = 0.9
EASE = 0.05
"""Work is accepted again once use is below the bound by this share of the limit."""
EVERY_S = 0.25
MOST_S = 2.0
GROWTH = 0.25 * GIB
"""Assumed fastest growth in bytes per second. Memory is sampled again before it could reach the
bound at this rate, after ``EVERY_S`` at the earliest and ``MOST_S`` at the latest.
"""
RELIEVE_S = 5.0
"""Seconds between two attempts to return freed memory to the system."""
RETRY_S = 5
WALK_S = 30.0
"""Seconds after which a process's descendants are listed again, unless one has exited before."""
ROOT = Path("/sys/fs/cgroup")


class MemorySource(Protocol):
    """Memory with a limit, in bytes."""

    @property
    def limit(self) -> int: ...

    def used(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Memory that the kernel charges to a control group, minus reclaimable page cache."""

    limit: int
    current: Path
    stat: Path
    cache: str

    def used(self) -> int:
        cache = _read_field(read_text(self.stat), self.cache)
        return max(0, _parse_number(read_text(self.current)) - cache)


@dataclass(slots=True)
class ProcessTree:
    """Memory of a process and its descendants. Shared memory is counted once."""

    limit: int
    pid: int = field(default_factory=os.getpid)
    _pids: list[int] = field(default_factory=list)
    _walk_at: float = 0.0

    def used(self) -> int:
        stats = self._read_stats()
        if time.monotonic() >= self._walk_at or "" in stats:
            self._pids = [self.pid, *_list_descendants(self.pid)]
            self._walk_at = time.monotonic() + WALK_S
            stats = self._read_stats()
        shared_memory = max((_read_field(stat, "RssShmem:") for stat in stats), default=0)
        return 1024 * (sum(_read_field(stat, "RssAnon:") for stat in stats) + shared_memory)

    def _read_stats(self) -> list[str]:
        return [read_text(f"/proc/{pid}/status") for pid in self._pids]


class MemoryMonitor:
    """Watches memory sources. ``shedding`` is True while one of them is above its bound."""

    def __init__(self, find_sources: Sequence[MemorySource]) -> None:
        self._sources = list(find_sources)
        self._bounds = [SHARE * source.limit for source in find_sources]
        self._used = [0] * len(find_sources)
        self.shedding = False

    def settle(self) -> None:
        """Set the bounds above the current use, which is assumed to be permanent."""
        self._used = [source.used() for source in self._sources]
        for index, source in enumerate(self._sources):
            self._bounds[index] = max(SHARE * source.limit, (self._used[index] + source.limit) / 2)

    def sample(self) -> None:
        self._used = [source.used() for source in self._sources]
        excesses = [
            num_bytes - bound for num_bytes, bound in zip(self._used, self._bounds, strict=True)
        ]
        if not self.shedding and any(excess >= 0 for excess in excesses):
            self.shedding = True
            log.warning("load shedding started: %s; new requests get 503", self.summary)
        elif self.shedding and all(
            excess < -EASE * source.limit
            for excess, source in zip(excesses, self._sources, strict=True)
        ):
            self.shedding = False
            log.warning("load shedding ended: %s", self.summary)

    def check(self, in_flight: int) -> None:
        """Raise Unavailable if memory is short and ``in_flight`` requests may release some."""
        if self.shedding and in_flight:
            raise Unavailable(
                f"This gateway is short of memory: {self.summary}. Retry after the time in "
                "Retry-After.",
                code="memory_pressure",
                retry_after_s=RETRY_S,
            )

    def check_room(self, num_bytes: int) -> None:
        """Raise Unavailable if ``num_bytes`` more would exceed a bound."""
        pairs = zip(self._bounds, self._used, strict=True)
        if any(now + num_bytes > bound for bound, now in pairs):
            raise Unavailable(
                f"This gateway has no memory for {num_bytes} bytes more: {self.summary}. "
                "Retry after the time in Retry-After, or ask for less.",
                code="memory_pressure",
                retry_after_s=RETRY_S,
            )

    @property
    def summary(self) -> str:
        """Use of the tightest memory limit, in words."""
        index = self._tightest()
        return (
            ""
            if index is None
            else f"{self._used[index] / GIB:.2f} of {self.limit / GIB:.2f} GiB used"
        )

    @property
    def used(self) -> int:
        index = self._tightest()
        return 0 if index is None else self._used[index]

    @property
    def limit(self) -> int:
        index = self._tightest()
        return 0 if index is None else self._sources[index].limit

    def _tightest(self) -> int | None:
        shares = [
            num_bytes / source.limit
            for num_bytes, source in zip(self._used, self._sources, strict=True)
        ]
        return max(range(len(shares)), key=shares.__getitem__, default=None)

    async def run(self) -> None:
        """Sample memory until cancelled."""
        looks_per_relief = int(RELIEVE_S / EVERY_S)
        num_looks = 0
        while self._sources:
            self.sample()
            if self.shedding and num_looks % looks_per_relief == 0:
                await asyncio.to_thread(release_free_memory)
            num_looks = num_looks + 1 if self.shedding else 0
            await asyncio.sleep(self.next_look_s())

    def next_look_s(self) -> float:
        """Return the seconds until memory is sampled again (see ``GROWTH``)."""
        if self.shedding:
            return EVERY_S
        room = min(
            bound - num_bytes for bound, num_bytes in zip(self._bounds, self._used, strict=True)
        )
        return min(MOST_S, max(EVERY_S, room / GROWTH))


def find_sources(num_bytes: int | None) -> list[MemorySource]:
    """Return the memory sources to watch: the control group, and ``num_bytes`` or the machine.

    The list is empty if ``num_bytes`` is 0.
    """
    if num_bytes == 0:
        return []
    groups: list[MemorySource] = list(find_control_groups(read_text("/proc/self/cgroup")))
    tightest = min(groups, key=lambda group: group.limit, default=None)
    sources: list[MemorySource] = [] if tightest is None else [tightest]
    if num_bytes is not None or not sources:
        sources.append(ProcessTree(num_bytes or _read_total_memory()))
    return sources


def find_control_groups(memberships: str, root: Path = ROOT) -> Iterator[ControlGroup]:
    """Yield the control groups of /proc/self/cgroup and their parents that have a limit.

    Supports cgroup versions 1 and 2.
    """
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = root / "memory"
        elif not controllers:
            names, top = ("memory.max", "memory.current", "inactive_file"), root
        else:
            continue
        for folder in _walk_up(top, path):
            limit = _parse_number(read_text(folder / names[0]))
            if 0 < limit < _read_total_memory():
                yield ControlGroup(limit, folder / names[1], folder / "memory.stat", names[2])


def release_free_memory() -> None:
    """Return free memory to the system: the allocator keeps it, and the kernel counts it as
    used.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def _walk_up(top: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and its parents. In a container, its own group may be the root,
    whatever ``path`` is.
    """
    folder = top / path.strip("/")
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _list_descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            for child in map(int, read_text(f"/proc/{pid}/task/{task}/children").split()):
                yield child
                yield from _list_descendants(child)


def _read_total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read_field(text: str, name: str) -> int:
    """Return the number after ``name`` at the beginning of a line; 0 without one."""
    _, _, value = f"\n{text}".partition(f"\n{name}")
    return _parse_number(value.split(maxsplit=1)[0]) if value else 0


def _parse_number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0
