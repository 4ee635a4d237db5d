"""A worker that counts the passes of its draft model; see test_draft_passes.py."""

from __future__ import annotations

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
