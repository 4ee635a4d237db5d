"""Hostile images: each is refused, or is harmless, in bounded time and memory."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from eaglegate.text.media import decoder_pool
from eaglegate.text.media.decoder import DAMAGED, TOO_MUCH_MEMORY
from eaglegate.text.media.decoder_pool import CRASH, TOO_SLOW
from eaglegate.text.media.reader import ImageReader
from eaglegate.text.media.source import ImageLimits, ImageReaderLost, ImageRefused
from tests.text.media.hostile_images import CASES, make_header, make_png, make_slow_jpeg
from tests.text.media.pictures import make_picture, to_source

LIMITS = ImageLimits(max_pixels=1 << 20)
LARGE = ImageLimits(max_pixels=1 << 30)
CHILD_BYTES = 128 << 20
"""Memory that a decoder may have used at most after the images of one format."""
HARMLESS = to_source(make_picture())


@pytest.fixture
async def reader() -> AsyncIterator[ImageReader]:
    """A reader, whose images one process decodes as long as they come one by one."""
    reader = ImageReader(LIMITS)
    yield reader
    await reader.aclose()


def find_pid() -> int:
    """Return the process that decodes images."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = [pid for task in tasks for pid in task.read_text().split()]
    programs = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    (pid,) = [int(pid) for pid, program in programs.items() if b"text.media.decoder" in program]
    return pid


def read_peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) << 10


async def judge(reader: ImageReader, data: bytes) -> str | None:
    """Return the rule by which an image is refused, or None if it is read."""
    try:
        (image,) = await reader.read([to_source(data)])
    except ImageRefused as refusal:
        return refusal.rule
    assert image.data == data
    return None


@pytest.mark.parametrize("form", CASES)
async def test_hostile_images(reader, form) -> None:
    """One process outlives them all."""
    await reader.read([HARMLESS])
    pid = find_pid()
    for case in CASES[form]():
        rule = await judge(reader, case.data)
        if case.refusal is None:
            assert rule is None, case.name
        else:
            assert rule is not None, case.name
            assert case.refusal in rule, case.name
        await reader.read([HARMLESS])
    assert find_pid() == pid
    assert read_peak_memory(pid) < CHILD_BYTES


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_damage_ends_no_process(reader, form) -> None:
    """Bytes are changed, repeated and cut off, as the seed says."""
    await reader.read([HARMLESS])
    pid = find_pid()
    dice = random.Random(form)
    verdicts = [await judge(reader, damage(make_picture(form), dice)) for _ in range(60)]
    assert None in verdicts
    assert DAMAGED in verdicts
    assert find_pid() == pid


def damage(data: bytes, dice: random.Random) -> bytes:
    """Damage an image behind the bytes that name its format."""
    damaged = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        damaged[dice.randrange(12, len(damaged))] = dice.randrange(256)
    if dice.random() < 0.2:
        place = dice.randrange(12, len(damaged))
        damaged[place:place] = damaged[: dice.randrange(len(damaged))]
    if dice.random() < 0.2:
        del damaged[dice.randrange(12, len(damaged)) :]
    if dice.random() < 0.2:
        damaged += b"PK" + dice.randbytes(20)
    return bytes(damaged)


async def test_memory_is_limited() -> None:
    """With a limit on pixels that memory does not allow."""
    reader = ImageReader(LARGE)
    large = make_png(header=make_header(30_000, 30_000))
    assert await judge(reader, large) == TOO_MUCH_MEMORY
    assert await judge(reader, make_picture()) is None
    await reader.aclose()


async def test_a_slow_image_is_refused_and_delays_others_by_its_limit(monkeypatch) -> None:
    monkeypatch.setattr(decoder_pool, "CPU_S", 0.5)
    reader = ImageReader(LARGE)
    slow = make_slow_jpeg()
    attacks = [asyncio.create_task(judge(reader, slow)) for _ in range(decoder_pool.PROCESSES)]
    await asyncio.sleep(0)
    images = await asyncio.gather(*(reader.read([HARMLESS]) for _ in range(20)))
    assert len(images) == 20
    assert await asyncio.gather(*attacks) == [TOO_SLOW] * len(attacks)
    await reader.aclose()


async def test_a_cancelled_request_ends_its_work() -> None:
    reader = ImageReader(LARGE)
    for _ in range(decoder_pool.PROCESSES):
        await reader.read([HARMLESS])
        pid = find_pid()
        task = asyncio.create_task(judge(reader, make_slow_jpeg()))
        await asyncio.to_thread(wait_for_work, pid)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_alive(pid)
    await reader.read([HARMLESS])
    await reader.aclose()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_for_work(pid: int) -> None:
    """Wait until a process has computed for 0.1 seconds more."""
    until = read_cpu_s(pid) + 0.1
    while read_cpu_s(pid) < until:
        time.sleep(0.01)


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_only_a_crash_is_the_fault_of_the_image(number) -> None:
    reader = ImageReader(LARGE)
    await reader.read([HARMLESS])
    task = asyncio.create_task(judge(reader, make_slow_jpeg()))
    pids = set[int]()
    for _ in range(decoder_pool.ATTEMPTS):
        pids.add(pid := await asyncio.to_thread(wait_for_another, pids))
        os.kill(pid, number)
    if number == signal.SIGSEGV:
        assert await task == CRASH
    else:
        with pytest.raises(ImageReaderLost, match="Try again") as loss:
            await task
        assert loss.value.retry_after_s > 0
    await reader.read([HARMLESS])
    await reader.aclose()


def wait_for_another(pids: set[int]) -> int:
    """Wait until a process decodes images that is none of ``pids``, and works."""
    while True:
        with suppress(ValueError, OSError):
            if (pid := find_pid()) not in pids:
                wait_for_work(pid)
                return pid
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_idle_process_that_died_or_hangs_is_replaced(reader, monkeypatch, number) -> None:
    await reader.read([HARMLESS])
    monkeypatch.setattr(decoder_pool, "PATIENCE_S", 2)
    os.kill(pid := find_pid(), number)
    await reader.read([HARMLESS])
    assert find_pid() != pid
