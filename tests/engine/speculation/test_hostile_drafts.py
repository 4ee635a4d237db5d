"""Folders that are no drafts: each is refused in words, and the next swap works."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.errors import DraftRefused
from eaglegate.engine.speculation.drafts import files as drafts
from eaglegate.engine.speculation.drafts import swap
from eaglegate.engine.speculation.drafts.files import check_apart
from tests.engine.speculation.test_drafts import change_config, copy_draft, make_manager

pytestmark = pytest.mark.thorough

PATIENT_S = 60


def replace_by_pipe(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def replace_by_link(name: str, goal: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(goal)

    return spoil


def write_config(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(text)


def change_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / "model.safetensors"
        content = file.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + size])
        header = change(header) or header
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])

    return spoil


def set_first(**fields: Any) -> Callable[[Path], None]:
    def change(header: dict[str, Any]) -> None:
        name = next(name for name in header if name != "__metadata__")
        header[name] |= fields

    return change_header(change)


def name_many(header: dict[str, Any]) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header |= {f"t{at}": entry for at in range(250_000)}


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HOSTILE: dict[str, Callable[[Path], None]] = {
    "weights are a pipe": replace_by_pipe(WEIGHTS),
    "more weights are a pipe": replace_by_pipe("other.safetensors"),
    "config is a pipe": replace_by_pipe("config.json"),
    "weights are a device": replace_by_link(WEIGHTS, "/dev/zero"),
    "config is a device": replace_by_link("config.json", "/dev/zero"),
    "weights are a folder": replace_by_link(WEIGHTS, "/"),
    "a header of many names": change_header(name_many),
    "a deep header": change_header(lambda _: b"[" * 100_000),
    "a type as a list": set_first(dtype=[1]),
    "a shape of texts": set_first(shape=["a", "b"]),
    "a shape of many dimensions": set_first(shape=[1] * 100_000),
    "a shape of huge numbers": set_first(shape=[10**30] * 10),
    "a shape below zero": set_first(shape=[-1, -1]),
    "offsets of texts": set_first(data_offsets=["0", "8"]),
    "offsets backwards": set_first(data_offsets=[8, 0]),
    "more behind the last tensor": lambda folder: os.truncate(folder / WEIGHTS, 1 << 40),
    "a deep config": write_config('{"a":' * 100_000 + "1" + "}" * 100_000),
    "a config of deep parts": write_config('{"text_config":' * 900 + "1" + "}" * 900),
    "a config of numbers": write_config('{"architectures": 7, "hidden_size": 1e999}'),
    "a config of lists": lambda folder: (
        change_config(folder, eagle_config=[1], model_type=[1], rope_scaling=[[]]) and None
    ),
    "an index of lists": lambda folder: (
        (folder / INDEX).write_text('{"weight_map": {"a": [1], "b": {}}}') and None
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_draft_is_refused_and_the_next_swap_works(tmp_path, name):
    manager, loader = make_manager()
    folder = copy_draft(tmp_path / "hostile", 1)
    HOSTILE[name](folder)
    with pytest.raises(DraftRefused) as refused:
        await manager.swap(str(folder))
    assert len(str(refused.value)) < 1000
    assert not loader.loaded
    if name.endswith(("a pipe", "many names")):
        await manager.swap(str(copy_draft(tmp_path / "good", 2)))
        assert loader.loaded


async def test_a_draft_that_cannot_be_inspected_in_time_is_refused(tmp_path, monkeypatch):
    manager, loader = make_manager()
    good = str(copy_draft(tmp_path / "good", 2))
    monkeypatch.setattr(swap, "check_apart", lambda *given: check_apart(*given, limit_s=0.001))
    with pytest.raises(DraftRefused, match=r"could not be inspected in 0\.001 s"):
        await manager.swap(good)
    monkeypatch.undo()
    await manager.swap(good)
    assert loader.loaded


async def test_an_inspection_that_takes_too_much_memory_is_refused(tmp_path, monkeypatch, caplog):
    manager, _ = make_manager()
    good = str(copy_draft(tmp_path / "good", 2))
    limited = (
        "import eaglegate.engine.speculation.drafts.files as a; a.MEMORY_BYTES = 1 << 20; a.main()"
    )
    run = drafts.subprocess.run
    monkeypatch.setattr(
        drafts.subprocess,
        "run",
        lambda command, **given: run((command[0], "-c", limited), **given),
    )
    with pytest.raises(DraftRefused, match="malformed, or too large"):
        await manager.swap(good)
    assert "inspecting draft" in caplog.text
