"""Lists of the tensors in files of torch.save, without loading them.

Such a file is a zip of a pickle and of raw storages. The unpickler here knows only the names that a
state dict needs, and makes only descriptions. It rejects any other name, so no code in the file
runs. Torch is not imported.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.weights import (
    ITEM_BYTES,
    LFS_MARK,
    TensorEntry,
    make_lfs_pointer_error,
    open_regular,
)

STORAGES = {
    "BoolStorage": "BOOL", "ByteStorage": "U8", "CharStorage": "I8", "ShortStorage": "I16",
    "IntStorage": "I32", "LongStorage": "I64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "FloatStorage": "F32", "DoubleStorage": "F64",
}  # fmt: skip
LOCAL_HEADER = struct.Struct("<26xHH")
"""Lengths of the name and the extra field between a zip entry's header and its data."""


class UnreadableArchive(Exception):
    """The file is not a zip of torch.save, or holds more than tensors."""


@dataclass(frozen=True, slots=True)
class StorageType:
    """Placeholder for a storage class."""

    dtype: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Placeholder for the bytes of one entry."""

    dtype: str
    key: str


@dataclass(frozen=True, slots=True)
class TensorView:
    """Placeholder for a tensor over a storage. ``offset`` counts items."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]


def rebuild(storage: Storage, offset: int, shape: tuple[int, ...], *_: Any) -> TensorView:
    return TensorView(storage, offset, tuple(shape))


def unwrap_parameter(view: TensorView, *_: Any) -> TensorView:
    return view


BUILDERS: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild,
    ("torch._utils", "_rebuild_parameter"): unwrap_parameter,
}


class StateDictUnpickler(pickle.Unpickler):
    """Unpickler that makes views where torch would make tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return StorageType(STORAGES[name])
        if (module, name) in BUILDERS:
            return BUILDERS[module, name]
        raise UnreadableArchive(f"it holds {module}.{name}")

    def persistent_load(self, pid: Any) -> Storage:
        _, kind, key, *_details = pid
        if not isinstance(kind, StorageType):
            raise UnreadableArchive("it holds a storage of unknown kind")
        return Storage(kind.dtype, str(key))


def read_archive(file: Path) -> dict[str, TensorEntry]:
    """Return the tensors in a file of torch.save, by name.

    Raises UnreadableArchive, and InvalidCheckpoint for an LFS pointer.
    """
    with open_regular(file) as stream:
        if stream.read(len(LFS_MARK)) == LFS_MARK:
            raise make_lfs_pointer_error(file)
    try:
        with zipfile.ZipFile(file) as archive:
            root = next(n for n in archive.namelist() if n.endswith("data.pkl"))
            with archive.open(root) as stream:
                state = StateDictUnpickler(stream).load()
            return dict(locate_tensors(archive, file, root.removesuffix("data.pkl"), state))
    except (zipfile.BadZipFile, StopIteration, pickle.UnpicklingError, KeyError) as error:
        raise UnreadableArchive(str(error)) from error


def locate_tensors(
    archive: zipfile.ZipFile, file: Path, root: str, state: Any
) -> list[tuple[str, TensorEntry]]:
    if not isinstance(state, dict):
        raise UnreadableArchive("it is no state dict")
    tensors = []
    for name, view in state.items():
        if not isinstance(view, TensorView):
            raise UnreadableArchive(f"{name!r} is no tensor")
        size = ITEM_BYTES[view.storage.dtype]
        start = (
            find_data_start(archive, file, f"{root}data/{view.storage.key}") + view.offset * size
        )
        tensor = TensorEntry(view.storage.dtype, view.shape, file, start, prod(view.shape) * size)
        tensors.append((str(name), tensor))
    return tensors


def find_data_start(archive: zipfile.ZipFile, file: Path, entry: str) -> int:
    """Return the position of an entry's bytes, which are the storage because torch.save does not
    compress."""
    info = archive.getinfo(entry)
    with file.open("rb") as stream:
        stream.seek(info.header_offset)
        name, extra = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
    return int(info.header_offset + LOCAL_HEADER.size + name + extra)
