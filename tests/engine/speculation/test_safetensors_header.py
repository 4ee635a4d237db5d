"""Headers of safetensors files, sound and broken."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglegate.engine.speculation.drafts.inspection.weights import (
    InvalidCheckpoint,
    read_array,
    read_header,
)
from tests.engine.speculation.draft_folder import Array, bf16, write_safetensors


def with_header(file: Path, header: Any, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def test_names_shapes_and_values(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    halves = np.array([[0.5, -1.25], [3.0, 1024.0]], np.float32)
    write_safetensors(file, {"a": bf16(halves), "b": Array("I64", np.arange(3))})
    found = read_header(file)
    assert found["a"].shape == (2, 2) and found["a"].num_bytes == 8
    assert np.array_equal(read_array(found["a"]), halves)
    assert np.array_equal(read_array(found["b"]), np.arange(3))


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "weights-truncated"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}, "weights-malformed"),
        ({"dtype": "F32", "shape": [1]}, "weights-malformed"),
        ("nonsense", "weights-malformed"),
    ],
)
def test_an_entry_that_cannot_be(tmp_path: Path, entry: Any, rule: str):
    file = with_header(tmp_path / "model.safetensors", {"a": entry}, b"\0" * 4)
    with pytest.raises(InvalidCheckpoint) as fault:
        read_header(file)
    assert fault.value.rule == rule


@pytest.mark.parametrize("content", [b"", b"\0" * 4, struct.pack("<Q", 1 << 50), b"\xff" * 64])
def test_invalid_headers_are_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(InvalidCheckpoint):
        read_header(file)


def test_a_header_that_is_a_list(tmp_path: Path):
    with pytest.raises(InvalidCheckpoint, match="not a JSON object"):
        read_header(with_header(tmp_path / "model.safetensors", [1, 2]))
