"""A worker that can lay lookups over drafts after these were handed over for validation."""

from __future__ import annotations

from typing import Any

import torch

from eaglegate.engine.vllm_backend.worker import DepthWorker


class OverlayWorker(DepthWorker):
    def overlay_lookups(self, token: int | None) -> None:
        """Hand over drafts that repeat this token, and verify the others; None: no overlay."""
        from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

        handler: Any = DraftTokensHandler
        if token is None:
            handler.set_draft_tokens = self._original
            return
        self._original = original = handler.set_draft_tokens

        def set_draft_tokens(self: Any, batch: Any, drafts: torch.Tensor) -> None:
            original(self, batch, torch.full_like(drafts, token))

        handler.set_draft_tokens = set_draft_tokens

    _original: Any
