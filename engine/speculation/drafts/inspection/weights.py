"""Lists of the tensors in safetensors files, without loading them.

Of a file only the header is read, and single small tensors by offset. The file starts with eight
bytes for the header's length (little endian). JSON follows that maps a name to
``{"dtype", "shape", "data_offsets"}``, and then the data. Offsets count from the end of the header.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_HEADER_BYTES = 32 << 20
"""Limit on the header's size, a third of the format's own limit."""
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
NUMPY_TYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2",
    "I32": "<i4", "U32": "<u4", "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8",
    "BF16": "<u2",
}  # fmt: skip
MAX_TENSORS = 200_000
"""Limit on the tensors of one file. The largest models have fewer in all files together."""
MAX_DIMENSIONS = 16
MAX_SIDE = 1 << 40
LFS_MARK = b"version https://git-lfs"
MAX_JSON_BYTES = 32 << 20
"""Limit on a JSON file's size. A config.json has some KiB, an index of 100,000 tensors 10 MiB."""


class InvalidCheckpoint(Exception):
    """A weights file is invalid. ``rule`` names the fault, and ``advice`` says how to fix it."""

    def __init__(self, rule: str, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.rule, self.found, self.advice = rule, problem, advice


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file. Never blocks, as opening a pipe would.

    Raises InvalidCheckpoint for anything but a regular file, and OSError.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidCheckpoint(
            "not-a-file",
            f"{file.name} is not a regular file but a pipe, a device or a folder",
            "copy the files themselves into the folder",
        )
    return os.fdopen(descriptor, "rb")


def read_small(file: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Read a small file. Raises InvalidCheckpoint and OSError."""
    with open_regular(file) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise InvalidCheckpoint(
            "file-too-large",
            f"{file.name} has more than {max_bytes} bytes",
            "restore the file from its source",
        )
    return content


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Entry of a tensor in a file. ``start`` is the position of its data."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    num_bytes: int


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Return the tensors in a file, by name. Raises InvalidCheckpoint."""
    with open_regular(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(max(8, len(LFS_MARK)))
        if head.startswith(LFS_MARK):
            raise make_lfs_pointer_error(file)
        if len(head) < 8:
            raise make_truncated_error(file, size, 8)
        length = struct.unpack("<Q", head[:8])[0]
        if length > MAX_HEADER_BYTES:
            raise make_malformed_error(file, f"its header would have {length} bytes")
        if 8 + length > size:
            raise make_truncated_error(file, size, 8 + length)
        stream.seek(8)
        header = parse_header(file, stream.read(length))
    return list_tensors(file, header, 8 + length, size)


def parse_header(file: Path, text: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise make_malformed_error(file, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise make_malformed_error(file, "its header is not a JSON object")
    return header


def list_tensors(
    file: Path, header: Mapping[str, Any], base: int, size: int
) -> dict[str, TensorEntry]:
    if len(header) > MAX_TENSORS:
        raise make_malformed_error(file, f"its header names more than {MAX_TENSORS} tensors")
    tensors: dict[str, TensorEntry] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor = read_entry(file, base, entry)
        if tensor is None:
            raise make_malformed_error(file, f"the entry of {name[:100]!r} is malformed")
        check_extent(file, name, tensor, size)
        tensors[name] = tensor
    if size > (end := max((t.start + t.num_bytes for t in tensors.values()), default=base)):
        raise make_malformed_error(file, f"{size - end} bytes follow its last tensor")
    return tensors


def read_entry(file: Path, base: int, entry: Any) -> TensorEntry | None:
    """Return the entry of a tensor; None if it is malformed."""
    match entry:
        case {
            "dtype": str() as dtype,
            "shape": list() as shape,
            "data_offsets": [int() as start, int() as end],
        } if len(shape) <= MAX_DIMENSIONS and 0 <= start <= end:
            if all(type(side) is int and 0 <= side < MAX_SIDE for side in shape):
                return TensorEntry(dtype, tuple(shape), file, base + start, end - start)
    return None


def check_extent(file: Path, name: str, tensor: TensorEntry, size: int) -> None:
    if tensor.start + tensor.num_bytes > size:
        raise make_truncated_error(file, size, tensor.start + tensor.num_bytes)
    item_bytes = ITEM_BYTES.get(tensor.dtype)
    if item_bytes is not None and item_bytes * prod(tensor.shape) != tensor.num_bytes:
        raise make_malformed_error(
            file, f"{name!r} has {tensor.num_bytes} bytes for {tensor.dtype} {list(tensor.shape)}"
        )


def make_lfs_pointer_error(file: Path) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        "weights-lfs-pointer",
        f"{file.name} is a Git LFS pointer of {file.stat().st_size} bytes, not weights",
        "fetch the weights: git lfs pull",
    )


def make_truncated_error(file: Path, size: int, needed_size: int) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        "weights-truncated",
        f"{file.name} ends after {size} bytes where its header needs at least {needed_size}",
        "download or copy the file again",
    )


def make_malformed_error(file: Path, reason: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        "weights-malformed",
        f"{file.name} is not a safetensors file: {reason}",
        "download the file again, or export it with the safetensors library",
    )


def read_array(tensor: TensorEntry) -> NDArray[Any]:
    """Return the values of one small tensor; bfloat16 becomes float32."""
    data = np.fromfile(
        tensor.file,
        dtype=NUMPY_TYPES[tensor.dtype],
        count=prod(tensor.shape),
        offset=tensor.start,
    )
    if tensor.dtype == "BF16":
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return data.reshape(tensor.shape)
