"""Exchange the weights of the draft between two steps, in the engine process and its workers.

vLLM's layerwise reload fills a model anew in the memory it has: CUDA graphs stay valid, and
weights that were packed after loading (on a CPU) are packed again. Modules that the draft shares
with the target are left out of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from vllm.config import set_current_vllm_config
from vllm.v1.engine.core import EngineCore

from engine.speculation.inspection.checkpoint import find_weight_files
from engine.speculation.inspection.weights import read_header

log = logging.getLogger(__name__)


class DraftReloader:
    """Added to vLLM's worker (``worker.DepthWorker``)."""

    def reload_draft(self, folder: str, running: str) -> str | None:
        """The reason if it fails: an exception would leave answers of other workers unread."""
        worker: Any = self
        try:
            with set_current_vllm_config(worker.vllm_config), torch.device(worker.device):
                reload_draft(worker, Path(folder), Path(running))
        except Exception as error:
            log.exception("draft could not be loaded")
            return f"{type(error).__name__}: {error}"
        return None


def reload_draft(worker: Any, folder: Path, running: Path) -> None:
    from vllm.model_executor.model_loader.reload import layerwise  # private: vllm_contract.py

    draft, target = worker.get_draft_model(), worker.get_model()
    if draft is None:
        raise ValueError("the engine runs without a draft")
    if worker.device.type != "cpu":
        torch.accelerator.synchronize()
    with detach_shared(draft, target) as shared:
        weights = dict(read_tensors(folder))
        check_names(weights, folder, running)
        check_shared(weights, running, shared)
        own = ((name, one) for name, one in weights.items() if not is_shared(name, shared))
        config = worker.vllm_config.speculative_config.draft_model_config
        layerwise.initialize_layerwise_reload(draft)
        try:
            draft.load_weights(own)
            layerwise.finalize_layerwise_reload(draft, config)
        except BaseException:
            abandon_reload(draft)
            raise


def abandon_reload(draft: nn.Module) -> None:
    """Put back what is not loaded, so that the running draft can be loaded again."""
    from vllm.model_executor.model_loader.reload import layerwise

    for layer in draft.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()


@contextmanager
def detach_shared(draft: nn.Module, target: nn.Module) -> Iterator[set[str]]:
    """The draft without the modules that are the target's; yields their names."""
    theirs = {id(module) for module in target.modules()}
    taken = [
        (parent, name, child)
        for parent in draft.modules()
        if id(parent) not in theirs
        for name, child in parent.named_children()
        if id(child) in theirs
    ]
    for parent, name, _ in taken:
        setattr(parent, name, nn.Module())
    try:
        yield {name for _, name, _ in taken}
    finally:
        for parent, name, child in taken:
            setattr(parent, name, child)


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for file in find_weight_files(folder):
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                yield name, tensors.get_tensor(name)


def is_shared(tensor: str, shared: set[str]) -> bool:
    return any(part in shared for part in tensor.split("."))


def check_names(weights: Mapping[str, torch.Tensor], folder: Path, running: Path) -> None:
    """A tensor that is not there would keep its old values. Raises ValueError."""
    known = {name for file in find_weight_files(running) for name in read_header(file)}
    if not weights or weights.keys() != known:
        raise ValueError(f"{folder} does not hold the tensors of the running draft, {running}")


def check_shared(weights: Mapping[str, torch.Tensor], running: Path, shared: set[str]) -> None:
    """A module that is the target's cannot take values of its own. Raises ValueError."""
    ours = {name: tensor for name, tensor in weights.items() if is_shared(name, shared)}
    before = dict(read_tensors(running)) if ours else {}
    for name, tensor in ours.items():
        if not torch.equal(tensor, before[name]):
            raise ValueError(
                f"the running draft shares {name} with the target and this draft has its own; "
                "restart the gateway with it"
            )


def swap_draft(core: EngineCore, folder: str, running: str) -> float:
    """Returns the seconds for which no step was made. Raises RuntimeError; then nothing changed."""
    began = perf_counter()
    reload = core.model_executor.collective_rpc
    failures = [found for found in reload("reload_draft", args=(folder, running)) if found]
    if failures:
        again = [found for found in reload("reload_draft", args=(running, running)) if found]
        text = f"the draft could not be loaded: {failures[0]}"
        raise RuntimeError(text + (f"; nor the running one: {again[0]}" if again else ""))
    core.scheduler.forget_draft()
    return perf_counter() - began
