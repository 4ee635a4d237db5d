"""A draft of zeros, made from another draft: every matrix not shared with the target is 0.

Its tensors have the names, types and shapes of the original, so that an engine can exchange them.
Vectors are kept, because inspection refuses a draft whose norms are 0.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

SHARED = ("embed_tokens", "lm_head")
"""Parts of the names of tensors that a draft may share with its target."""
FLOATS = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
CHUNK = 1 << 24


def make_blank_draft(source: Path, folder: Path) -> Path:
    """Copy the draft in ``source`` and overwrite its tensors with zeros. Returns ``folder``."""
    folder.mkdir(parents=True)
    for path in [*source.glob("*.json"), *source.glob("*.safetensors")]:
        shutil.copyfile(path, folder / path.name)
    for path in folder.glob("*.safetensors"):
        blank_tensors(path)
    return folder


def blank_tensors(path: Path) -> None:
    ranges = list(list_tensors(path))
    with path.open("r+b") as file:
        for start, end in ranges:
            file.seek(start)
            for offset in range(start, end, CHUNK):
                file.write(bytes(min(CHUNK, end - offset)))


def list_tensors(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of the bytes of each tensor to overwrite."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    for name, tensor in header.items():
        if name == "__metadata__" or tensor["dtype"] not in FLOATS or len(tensor["shape"]) < 2:
            continue
        if not any(part in name for part in SHARED):
            start, end = tensor["data_offsets"]
            yield 8 + length + start, 8 + length + end
