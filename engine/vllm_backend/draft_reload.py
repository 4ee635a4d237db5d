"""Exchange of the draft's weights between two steps, in the engine process and its workers.

vLLM's layerwise reload fills a model in the memory that it already has: CUDA graphs stay valid, and
weights that were packed after loading (on a CPU) are packed again. Modules that the draft shares
with the target are left out.

A draft is staged first: every worker reads and checks it in a thread while steps continue, so that
the pause includes no reading from disk. Every worker reads the whole draft and loads its share.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.engine.core import EngineCore

from eaglegate.engine.speculation.drafts.inspection.checkpoint import find_weight_files
from eaglegate.engine.speculation.drafts.inspection.weights import read_header

log = logging.getLogger(__name__)


class StagedDraft:
    """Tensors of a draft in this worker's memory, read and checked in their own thread."""

    def __init__(self, worker: Any, folder: str, running_folder: str) -> None:
        self.names = folder, running_folder
        self._result: dict[str, torch.Tensor] | Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(worker,), daemon=True)
        self._thread.start()

    def _read(self, worker: Any) -> None:
        folder, running_folder = map(Path, self.names)
        try:
            self._result = read_draft(worker, folder, running_folder)
        except Exception as error:
            log.exception("draft could not be read")
            self._result = error

    @property
    def state(self) -> bool | str:
        """False while the draft is being read, True once it is read, or the reason of a failure."""
        if isinstance(self._result, Exception):
            return summarize(self._result)
        return self._result is not None

    def take(self) -> dict[str, torch.Tensor]:
        """Wait until the draft was read, and return its tensors. Raises any exception of the
        reading."""
        self._thread.join()
        assert self._result is not None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class DraftReloader:
    """Mix-in for vLLM's worker (``worker.DepthWorker``) that exchanges the draft."""

    _staged_draft: StagedDraft | None = None

    def stage_draft(self, folder: str, running_folder: str) -> None:
        """Begin to read a draft while steps continue."""
        self._staged_draft = StagedDraft(self, folder, running_folder)

    def get_staged(self) -> bool | str:
        """Return ``StagedDraft.state``."""
        return self._staged_draft.state if self._staged_draft else "no draft is being read"

    def discard_draft(self) -> None:
        self._staged_draft = None

    def reload_draft(self, folder: str, running_folder: str) -> str | None:
        """Load a draft. Return the reason of a failure, because an exception would leave the
        answers of other workers unread."""
        worker: Any = self
        draft, self._staged_draft = self._staged_draft, None
        if draft is None or draft.names != (folder, running_folder):
            draft = StagedDraft(worker, folder, running_folder)
        try:
            weights = draft.take()
            with set_current_vllm_config(worker.vllm_config), torch.device(worker.device):
                reload_draft(worker, weights)
        except Exception as error:
            log.exception("draft could not be loaded")
            return summarize(error)
        return None


def summarize(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def read_draft(worker: Any, folder: Path, running_folder: Path) -> dict[str, torch.Tensor]:
    """Read the tensors that the draft does not share with the target, into host memory.

    For a GPU the memory is pinned, so that the GPU can copy it without the CPU's help. Raises
    ValueError if they are not the tensors of the running draft.
    """
    draft, target = worker.get_draft_model(), worker.get_model()
    if draft is None:
        raise ValueError("the engine runs without a draft")
    shared_names = {name for _, name, _ in find_shared(draft, target)}
    check_names(folder, running_folder)
    check_shared(folder, running_folder, shared_names)
    pin_memory = worker.device.type != "cpu" and is_pin_memory_available()
    if pin_memory:
        torch.accelerator.set_device_index(worker.device)
    return {
        name: tensor.pin_memory() if pin_memory else tensor.clone()
        for name, tensor in read_tensors(folder)
        if not is_shared(name, shared_names)
    }


def reload_draft(worker: Any, weights: Mapping[str, torch.Tensor]) -> None:
    from vllm.model_executor.model_loader.reload import layerwise  # private: vllm_parts.py

    draft, target = worker.get_draft_model(), worker.get_model()
    if worker.device.type != "cpu":
        torch.accelerator.synchronize()
    with detach_shared(draft, target):
        config = worker.vllm_config.speculative_config.draft_model_config
        layerwise.initialize_layerwise_reload(draft)
        try:
            draft.load_weights(weights.items())
            layerwise.finalize_layerwise_reload(draft, config)
        except BaseException:
            abandon_reload(draft)
            raise


def abandon_reload(draft: nn.Module) -> None:
    """Restore the layers that were not loaded, so that the running draft can be loaded again."""
    from vllm.model_executor.model_loader.reload import layerwise

    for layer in draft.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()


def find_shared(draft: nn.Module, target: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Return the draft's modules that belong to the target, as (parent, name in the parent,
    module)."""
    target_ids = {id(module) for module in target.modules()}
    return [
        (parent, name, child)
        for parent in draft.modules()
        if id(parent) not in target_ids
        for name, child in parent.named_children()
        if id(child) in target_ids
    ]


@contextmanager
def detach_shared(draft: nn.Module, target: nn.Module) -> Iterator[None]:
    """Detach the target's modules from the draft inside the context."""
    modules = find_shared(draft, target)
    for parent, name, _ in modules:
        setattr(parent, name, nn.Module())
    try:
        yield
    finally:
        for parent, name, child in modules:
            setattr(parent, name, child)


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in find_weight_files(folder):
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tensors.get_tensor(name)


def is_shared(name: str, shared_names: set[str]) -> bool:
    return any(module in shared_names for module in name.split("."))


def check_names(folder: Path, running_folder: Path) -> None:
    """Check that both drafts have the same tensors, because a missing one would keep its old
    values.

    Raises ValueError.
    """
    names, running_names = (
        {name for file in find_weight_files(path) for name in read_header(file)}
        for path in (folder, running_folder)
    )
    if not names or names != running_names:
        raise ValueError(
            f"{folder} does not hold the tensors of the running draft, {running_folder}"
        )


def check_shared(folder: Path, running_folder: Path, shared_names: set[str]) -> None:
    """Check that tensors shared with the target are unchanged, because they cannot be replaced.

    Raises ValueError.
    """
    tensors, running_tensors = (
        {name: tensor for name, tensor in read_tensors(path) if is_shared(name, shared_names)}
        for path in (folder, running_folder)
    )
    for name, tensor in tensors.items():
        if not torch.equal(tensor, running_tensors[name]):
            raise ValueError(
                f"the running draft shares {name} with the target and this draft has its own; "
                "restart the gateway with it"
            )


def stage_draft(core: EngineCore, folder: str, running_folder: str) -> None:
    """Make every worker begin to read a draft. Steps continue meanwhile."""
    core.model_executor.collective_rpc("stage_draft", args=(folder, running_folder))


def get_staged(core: EngineCore) -> bool | str:
    """Return True if every worker has read the draft, or the reason why one could not."""
    states: list[bool | str] = core.model_executor.collective_rpc("get_staged")
    return next((state for state in states if isinstance(state, str)), all(states))


def discard_draft(core: EngineCore) -> None:
    """Free the memory of a draft that will not be loaded."""
    core.model_executor.collective_rpc("discard_draft")


def swap_draft(core: EngineCore, folder: str, running_folder: str) -> float:
    """Load a draft, which is read first unless it was staged.

    Returns the seconds in which no step was made. Raises RuntimeError; then nothing changed.
    """
    start, reload = perf_counter(), core.model_executor.collective_rpc
    errors = [*filter(None, reload("reload_draft", args=(folder, running_folder)))]
    if errors:
        text = f"the draft could not be loaded: {errors[0]}"
        if retry := [*filter(None, reload("reload_draft", args=(running_folder, running_folder)))]:
            text += f"; the running draft could not be loaded again: {retry[0]}"
        raise RuntimeError(text)
    core.scheduler.forget_draft()
    return perf_counter() - start
