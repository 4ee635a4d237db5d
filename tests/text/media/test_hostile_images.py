"""Hostile images: each is refused, or is harmless, in bounded time and memory."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator
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
async def reader(monkeypatch) -> AsyncIterator[ImageReader]:
    """A reader with one process, which stays the same while no test kills it."""
    monkeypatch.setattr(decoder_pool, "PROCESSES", 1)
    reader = ImageReader(LIMITS)
    yield reader
    await reader.aclose()


def find_pid(reader: ImageReader) -> int:
    child = reader._decoders._idle[0]._child
    assert child is not None
    return child.pid


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
    pid = find_pid(reader)
    for case in CASES[form]():
        rule = await judge(reader, case.data)
        if case.refusal is None:
            assert rule is None, case.name
        else:
            assert rule is not None, case.name
            assert case.refusal in rule, case.name
        await reader.read([HARMLESS])
    assert find_pid(reader) == pid
    assert read_peak_memory(pid) < CHILD_BYTES


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
async def test_damage_ends_no_process(reader, form) -> None:
    """Bytes are changed, repeated and cut off, as the seed says."""
    await reader.read([HARMLESS])
    pid = find_pid(reader)
    dice = random.Random(form)
    verdicts = [await judge(reader, damage(make_picture(form), dice)) for _ in range(60)]
    assert None in verdicts
    assert DAMAGED in verdicts
    assert find_pid(reader) == pid


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


async def test_requests_with_many_images_take_turns_with_others(reader) -> None:
    order = []

    async def read(name: str, num_images: int) -> None:
        await reader.read([HARMLESS] * num_images)
        order.append(name)

    await asyncio.gather(read("many", 20), read("few", 2))
    assert order == ["few", "many"]


async def test_a_cancelled_request_ends_its_work(reader, monkeypatch) -> None:
    reader = ImageReader(LARGE)
    await reader.read([HARMLESS])
    pid = find_pid(reader)
    task = asyncio.create_task(judge(reader, make_slow_jpeg()))
    await asyncio.to_thread(wait_for_work, pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid)
    await reader.read([HARMLESS])
    assert find_pid(reader) != pid
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


DYING = """
import os, sys
print("true", flush=True)
sys.stdin.buffer.readline()
os.kill(os.getpid(), {number})
"""


def start_dying(reader: ImageReader, number: int) -> tuple[str, ...]:
    """Make the reader's process one that a signal ends at its first image. Returns its command."""
    decoder = reader._decoders._idle[0]
    command = decoder._command
    decoder._command = (command[0], "-c", DYING.format(number=int(number)))
    return command


async def test_an_image_that_crashes_every_decoder_is_refused(reader) -> None:
    command = start_dying(reader, signal.SIGSEGV)
    assert await judge(reader, make_picture()) == CRASH
    reader._decoders._idle[0]._command = command
    await reader.read([HARMLESS])


async def test_a_process_that_others_kill_is_no_fault_of_the_image(reader) -> None:
    command = start_dying(reader, signal.SIGKILL)
    with pytest.raises(ImageReaderLost, match="Try again") as loss:
        await reader.read([HARMLESS])
    assert loss.value.retry_after_s > 0
    reader._decoders._idle[0]._command = command
    await reader.read([HARMLESS])


async def test_a_process_that_died_while_idle_is_replaced(reader) -> None:
    await reader.read([HARMLESS])
    reader._decoders._idle[0]._child.kill()
    await reader.read([HARMLESS])


async def test_a_process_that_never_answers_is_given_up(reader, monkeypatch) -> None:
    monkeypatch.setattr(decoder_pool, "PATIENCE_S", 0.2)
    reader._decoders._idle[0]._command = ("sh", "-c", "echo true; cat > /dev/null; sleep 60")
    start = time.monotonic()
    with pytest.raises(ImageReaderLost):
        await reader.read([HARMLESS])
    assert time.monotonic() - start < 5
