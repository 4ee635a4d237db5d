"""Draft versions: a fingerprint of the files, a check for replacing another draft, and copies.

A draft whose weights are exchanged in a running engine keeps the shape of the replaced one: same
method, same config, same tensors. vLLM itself checks none of this.

A folder that a user names may hold anything, and the gateway must neither wait for it nor fail.
Therefore ``check_apart`` inspects it in a process with limits, which runs this module as a program.
"""

from __future__ import annotations

import json
import logging
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import file_digest, sha256
from math import prod
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from eaglegate.engine.errors import DraftRefused
from eaglegate.engine.speculation.drafts.inspection import SpeculationReport, inspect_draft
from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    Checkpoint,
    NotInspectable,
    find_weight_files,
    open_checkpoint,
    open_model,
)
from eaglegate.engine.speculation.drafts.inspection.configs import read_draft
from eaglegate.engine.speculation.drafts.inspection.weights import (
    InvalidCheckpoint,
    TensorEntry,
    open_regular,
    read_small,
)
from eaglegate.engine.speculation.drafts.versions import DraftVersion

log = logging.getLogger(__name__)

CHUNK = 1 << 22
IGNORED_KEYS = frozenset(
    {
        "_name_or_path", "auto_map", "bos_token_id", "dtype", "eos_token_id", "initializer_range",
        "pad_token_id", "speculators_config", "speculators_version", "torch_dtype",
        "transformers_version", "use_cache",
    }
)  # fmt: skip
"""Keys of config.json that do not affect how a draft runs."""
EXPONENTS: Mapping[str, tuple[str, int]] = {
    "BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000),
}  # fmt: skip
"""Integer type and exponent bits by dtype. If all these bits are set, the value is not finite."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """Setting for the inspection of drafts: the target and vLLM's speculative config."""

    target: str
    speculative_config: Mapping[str, Any]
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    target_config: Mapping[str, Any] | None = None

    @property
    def draft(self) -> str:
        """The draft with which the engine is started."""
        return str(self.speculative_config.get("model") or "")

    def inspect(self, draft: str) -> SpeculationReport:
        return inspect_draft(
            self.target,
            {**self.speculative_config, "model": draft},
            tensor_parallel_size=self.tensor_parallel_size,
            max_model_len=self.max_model_len,
            target_config=self.target_config,
        )

    def read_version(self, draft: str) -> DraftVersion:
        """Return a draft's version. Raises DraftRefused unless it is a local folder of
        safetensors."""
        report = self.inspect(draft)
        return make_version(draft, report.method, report.summary)

    def check(self, draft: str, running_draft: str) -> SpeculationReport:
        """Inspect ``draft``. Raises DraftRefused unless it may replace ``running_draft``."""
        report, running_report = self.inspect(draft), self.inspect(running_draft)
        problems = [str(finding) for finding in report.errors]
        # An unread draft has the method of the flags, so folders come before methods.
        folders = [] if problems else [find_folder(draft), find_folder(running_draft)]
        if not problems and report.method != running_report.method:
            problems = [
                f"it is {report.method}, the running draft is {running_report.method}; restart the "
                "gateway with it"
            ]
        if not problems and not report.method.startswith("eagle3"):
            problems = [
                f"only EAGLE 3 and 3.1 drafts can be exchanged, this one is {report.method}"
            ]
        if not problems:
            problems = list(find_differences(*map(open_checkpoint, folders)))
        if problems:
            raise DraftRefused(f"The draft {draft} cannot replace the running one: {problems[0]}.")
        return report


def make_version(draft: str, method: str, summary: str) -> DraftVersion:
    """Make a draft's version. Raises DraftRefused unless it is a local folder of safetensors."""
    folder = find_folder(draft)
    try:
        fingerprint = fingerprint_draft(folder)
    except InvalidCheckpoint as fault:
        raise DraftRefused(f"{fault.found}; {fault.advice}.") from None
    return DraftVersion(fingerprint, str(folder), str(folder), method, summary)


def find_folder(draft: str) -> Path:
    """Return the draft's folder of safetensors. Raises DraftRefused."""
    try:
        checkpoint = open_model(draft)
    except InvalidCheckpoint as fault:
        raise DraftRefused(f"{fault.found}; {fault.advice}.") from None
    except NotInspectable as reason:
        raise DraftRefused(f"The draft {draft} cannot be read here: {reason}.") from None
    if not find_weight_files(checkpoint.path):
        raise DraftRefused(f"The draft {draft} holds no safetensors; convert its weights first.")
    return checkpoint.path.resolve()


def list_files(folder: Path) -> list[Path]:
    """List the files that make a draft: config.json, the weights, and their index."""
    index = sorted(folder.glob("*.safetensors.index.json"))
    return [folder / "config.json", *index, *find_weight_files(folder)]


def fingerprint_draft(folder: Path) -> str:
    """Return sixteen hexadecimal digits that identify config.json and every byte of the weights."""
    digest = sha256(read_small(folder / "config.json"))
    for weights in find_weight_files(folder):
        with open_regular(weights) as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def find_differences(candidate: Checkpoint, running_checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the reasons why weights of ``candidate`` cannot replace those of the running draft."""
    config, running_config = (
        read_draft(candidate.config).read,
        read_draft(running_checkpoint.config).read,
    )
    for key in sorted((config.keys() | running_config.keys()) - IGNORED_KEYS):
        if config.get(key) != running_config.get(key):
            values = f"{config.get(key)}, the running draft {running_config.get(key)}"
            yield f"config.json has {key} = {values}"
    for name in sorted(candidate.tensors.keys() | running_checkpoint.tensors.keys()):
        tensor, running_tensor = candidate.tensors.get(name), running_checkpoint.tensors.get(name)
        if tensor is None or running_tensor is None:
            yield f"{name} is in {'the running draft' if tensor is None else 'this draft'} only"
        elif tensor.shape != running_tensor.shape:
            shapes = f"{list(tensor.shape)}, the running draft {list(running_tensor.shape)}"
            yield f"{name} has shape {shapes}"


def check_finite(folder: Path) -> None:
    """Check the weights. Raises DraftRefused if a value is infinite or not a number."""
    for name, tensor in open_checkpoint(folder).tensors.items():
        if has_nonfinite(tensor):
            raise DraftRefused(f"The draft's {name} holds values that are not finite numbers.")


def has_nonfinite(tensor: TensorEntry) -> bool:
    if tensor.dtype not in EXPONENTS:
        return False
    kind, exponent = EXPONENTS[tensor.dtype]
    num_values, offset = prod(tensor.shape), tensor.start
    while num_values:
        bits = np.fromfile(tensor.file, kind, min(num_values, CHUNK), offset=offset)
        if bool(((bits & exponent) == exponent).any()):
            return True
        num_values, offset = num_values - bits.size, offset + bits.nbytes
    return False


class DraftStore:
    """Copies of drafts by fingerprint, so that drafts served before are available for a rollback.

    A file that the engine reads must not change, because overwriting it ends the process. If a
    folder is given, the store also remembers which draft was promoted.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._persistent = folder is not None
        # Absolute, because promoted.json is read by gateways started in other folders.
        self._folder = Path(folder).expanduser().absolute() if folder is not None else None

    @property
    def folder(self) -> Path:
        """Folder of the copies, created on first use. Raises OSError."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="eaglegate-drafts-"))
            finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def add(self, version: DraftVersion) -> DraftVersion:
        """Copy a draft, and return its version with the copy's fingerprint and path. Raises
        DraftRefused."""
        try:
            return self._copy(version)
        except InvalidCheckpoint as fault:
            raise DraftRefused(f"{fault.found}; {fault.advice}.") from None
        except OSError as error:
            raise DraftRefused(
                f"The draft cannot be copied to {self._folder or tempfile.gettempdir()}: "
                f"{error.strerror or error}. Name a folder with room in --draft-store."
            ) from error

    def _copy(self, version: DraftVersion) -> DraftVersion:
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".copy-") as temporary_folder:
            copy = Path(temporary_folder) / "draft"
            copy.mkdir()
            for file in list_files(Path(version.source)):
                copy_file(file, copy / file.name)
            fingerprint = fingerprint_draft(copy)
            destination = self.folder / fingerprint
            if not destination.is_dir():
                check_finite(copy)
                copy.rename(destination)
        return replace(version, fingerprint=fingerprint, path=str(destination))

    def prune(self, fingerprints: set[str]) -> None:
        """Delete the copies of all other fingerprints."""
        for copy in self.folder.iterdir():
            if copy.is_dir() and not copy.name.startswith(".") and copy.name not in fingerprints:
                shutil.rmtree(copy, ignore_errors=True)

    def remember(self, configured_draft: str, version: DraftVersion) -> None:
        """Make the next gateway with the draft ``configured_draft`` serve ``version``."""
        if not self._persistent:
            return
        record = {"configured": configured_draft, **asdict(version)}
        write_json(self.folder / "promoted.json", record)

    def recall(self, configured_draft: str) -> DraftVersion | None:
        """Return the draft promoted in place of ``configured_draft``, if its copy is intact."""
        if not self._persistent:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = json.loads((self.folder / "promoted.json").read_text())
            if record.pop("configured") == configured_draft:
                copy = self.folder / record["fingerprint"]
                version = DraftVersion(**{**record, "path": str(copy)})
                return version if is_whole(version) else None
        return None


def copy_file(source: Path, goal: Path) -> None:
    """Copy a regular file. Raises InvalidCheckpoint for anything else, and OSError."""
    with open_regular(source) as stream, goal.open("wb") as copy:
        shutil.copyfileobj(stream, copy, CHUNK)


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically: a reader finds the old value or the new one. Raises OSError."""
    temporary_path = path.with_name(f".{path.name}")
    temporary_path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    temporary_path.replace(path)


def is_whole(version: DraftVersion) -> bool:
    """Return True if the draft's files still match its fingerprint."""
    with suppress(OSError, InvalidCheckpoint, NotInspectable):
        open_checkpoint(Path(version.path))
        return fingerprint_draft(Path(version.path)) == version.fingerprint
    return False


INSPECT_S = 120.0
"""Time limit of one inspection in seconds. It takes two, and over 60 beside the busy workers of two
ranks on two cores."""
MEMORY_BYTES = 4 << 30


def check_apart(
    plan: DraftPlan, draft: str, running_draft: str, limit_s: float = INSPECT_S
) -> Mapping[str, str]:
    """Inspect ``draft`` in a separate process; return its ``method`` and ``summary``. Blocks for
    seconds.

    Raises DraftRefused unless it may replace ``running_draft``.
    """
    question = {"plan": asdict(plan), "draft": draft, "running": running_draft}
    try:
        process = subprocess.run(
            # -P: no module of this folder is imported, and relative paths stay what they are.
            (sys.executable, "-P", "-m", "eaglegate.engine.speculation.drafts.files"),
            input=json.dumps(question, default=str).encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DraftRefused(
            f"The draft {draft} could not be inspected in {limit_s:g} s. Check its files, and the "
            "disk or network they are on."
        ) from None
    if process.returncode:
        log.warning("inspecting draft %s failed: %s", draft, _last_line(process.stderr))
        raise DraftRefused(
            f"The draft {draft} could not be inspected: its config.json or the headers of its "
            "weights are malformed, or too large. The gateway's log has details."
        )
    answer: dict[str, str] = json.loads(process.stdout)
    if refusal := answer.get("refused"):
        raise DraftRefused(refusal)
    return answer


def _last_line(output: bytes) -> str:
    return (output.decode("utf-8", "replace").strip().splitlines() or ["no reason"])[-1][:300]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    question = json.load(sys.stdin)
    try:
        report = DraftPlan(**question["plan"]).check(question["draft"], question["running"])
    except DraftRefused as refusal:
        answer = {"refused": str(refusal)}
    else:
        answer = {"method": report.method, "summary": report.summary}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
