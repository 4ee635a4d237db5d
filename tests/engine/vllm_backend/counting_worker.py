"""A worker that counts the passes of its draft model and takes patches of vLLM away again.

See test_adapters.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import unwrap
from typing import Any

from eaglegate.engine.vllm_backend.worker import DepthWorker


class CountingWorker(DepthWorker):
    passes = 0

    def count_draft_passes(self) -> int:
        """Passes since the last call; counting begins with the first."""
        worker: Any = self
        if "passes" not in vars(worker):
            worker.get_draft_model().register_forward_hook(self._add)
        counted, self.passes = self.passes, 0
        return counted

    def _add(self, *_: object) -> None:
        self.passes += 1

    def remove_patch(self, module: str, owner: str, name: str) -> None:
        """Let vLLM's own function do the work."""
        place = getattr(import_module(module), owner)
        self._removed = place, name, getattr(place, name)
        setattr(place, name, unwrap(getattr(place, name)))

    def restore_patch(self) -> None:
        """The one removed last."""
        setattr(*self._removed)

    _removed: tuple[Any, str, Callable[..., Any]]
