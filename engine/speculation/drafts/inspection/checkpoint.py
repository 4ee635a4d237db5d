"""Model folder as files: config.json and the list of tensors. Weights are not loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.drafts.inspection.weights import (
    InvalidCheckpoint,
    TensorEntry,
    read_header,
    read_small,
)

MISTRAL = "params.json"
INDEX = "model.safetensors.index.json"
NOT_DOWNLOADED = ("weights-absent", "weights-shard-absent")
PICKLES = ("*.bin", "*.pt")
NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "training_state")


class NotInspectable(Exception):
    """vLLM may be able to load the model, but inspection cannot read it; ``str`` says why."""


class NotDownloaded(NotInspectable):
    """The model is named by a hub id and is not in this machine's hub cache."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not on this machine")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Files of a model folder.

    ``pickled`` names weights whose tensors could not be listed; ``tensors`` is then empty.
    """

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    pickled: str | None = None

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def open_model(name: str, revision: str | None = None) -> Checkpoint:
    """Open a checkpoint by path or hub id. Raises NotDownloaded and InvalidCheckpoint.

    A hub snapshot without weights counts as not downloaded, not as broken.
    """
    path = locate(name, revision)
    try:
        return open_checkpoint(path)
    except InvalidCheckpoint as fault:
        if fault.rule in NOT_DOWNLOADED and not Path(name).expanduser().exists():
            raise NotDownloaded(name) from fault
        raise


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the checkpoint in a folder. Raises InvalidCheckpoint if the folder cannot be read."""
    config = read_config(path)
    files = find_weight_files(path)
    if files:
        tensors: dict[str, TensorEntry] = {}
        for file in files:
            tensors |= read_header(file)
        check_index(path, tensors)
        return Checkpoint(path, config, tensors)
    pickles = find_pickle_files(path)
    if pickles:
        return read_pickled(path, config, pickles)
    raise InvalidCheckpoint(
        "weights-absent",
        f"{path} holds no weights (*.safetensors, *.bin or *.pt)",
        "download the weights into that folder, or name the right folder",
    )


def find_pickle_files(path: Path) -> list[Path]:
    """Return the files that vLLM falls back to, which are those of the first pattern that matches
    any."""
    for pattern in PICKLES:
        files = sorted(f for f in path.glob(pattern) if not f.name.startswith(NOT_WEIGHTS))
        if files:
            return files
    return []


def read_pickled(path: Path, config: Mapping[str, Any], files: list[Path]) -> Checkpoint:
    from eaglegate.engine.speculation.drafts.inspection.torch_archive import (
        UnreadableArchive,
        read_archive,
    )

    tensors: dict[str, TensorEntry] = {}
    try:
        for file in files:
            tensors |= read_archive(file)
    except UnreadableArchive:
        return Checkpoint(path, config, pickled=", ".join(file.name for file in files))
    return Checkpoint(path, config, tensors)


def read_config(path: Path) -> Mapping[str, Any]:
    if not path.is_dir():
        state = "is a file" if path.exists() else "does not exist"
        raise InvalidCheckpoint(
            "folder-absent", f"{path} {state}", "name the folder that holds config.json and weights"
        )
    file = path / "config.json"
    if not file.is_file() and (path / MISTRAL).is_file():
        raise NotInspectable(f"{path} is in Mistral's own format")
    if not file.is_file():
        raise InvalidCheckpoint(
            "config-absent",
            f"{path} has no config.json",
            "name the folder that holds config.json, or copy it there",
        )
    return read_json(file, "config-malformed")


def read_json(file: Path, rule: str) -> Mapping[str, Any]:
    try:
        value = json.loads(read_small(file))
        problem = "is not a JSON object"
    except RecursionError:
        value, problem = None, "is nested too deeply"
    except ValueError as error:
        value, problem = None, f"is not JSON: {error}"
    if isinstance(value, dict):
        return value
    raise InvalidCheckpoint(rule, f"{file.name} {problem}", "restore the file from its source")


def find_weight_files(path: Path) -> list[Path]:
    """Return the files that vLLM would read: the files of the index if there is one, else all."""
    present = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    if not index.is_file():
        return present
    files = {path / str(name) for name in read_weight_map(index).values()}
    absent_names = sorted(file.name for file in files if not file.is_file())
    if absent_names:
        raise InvalidCheckpoint(
            "weights-shard-absent",
            f"{INDEX} names {', '.join(absent_names)}, which is not there",
            "download the missing file",
        )
    return sorted(files)


def read_weight_map(index: Path) -> Mapping[str, Any]:
    names = read_json(index, "index-malformed").get("weight_map")
    if not isinstance(names, dict):
        raise InvalidCheckpoint(
            "index-malformed", f"{index.name} has no weight_map", "restore the file from its source"
        )
    return names


def check_index(path: Path, tensors: Mapping[str, TensorEntry]) -> None:
    index = path / INDEX
    if not index.is_file():
        return
    absent_names = sorted(set(read_weight_map(index)) - set(tensors))
    if absent_names:
        raise InvalidCheckpoint(
            "weights-incomplete",
            f"{INDEX} lists {absent_names[0]} ({len(absent_names)} such), which no file holds",
            "download the weights again",
        )


def locate(name: str, revision: str | None = None) -> Path:
    """Return a model's folder: a local path or its hub cache snapshot. Raises NotInspectable."""
    path = Path(name).expanduser()
    if "://" in name:
        raise NotInspectable(f"{name} is in remote storage")
    if path.is_file() and path.suffix == ".gguf":
        raise NotInspectable(f"{name} is a GGUF file")
    if path.exists() or not looks_like_hub_id(name):
        return path
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached_path = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise NotInspectable(f"{name} is no plain hub id") from error
    if isinstance(cached_path, str):
        return Path(cached_path).parent
    raise NotDownloaded(name)


def looks_like_hub_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) <= 2 and all(parts) and not name.startswith((".", "~", "/"))
