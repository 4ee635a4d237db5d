"""vLLM's worker with its own slots of draft tokens, which are wrong after an image."""

from __future__ import annotations

from inspect import unwrap

from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from eaglegate.engine.vllm_backend.worker import DepthWorker

NAME = "_update_positions_dependent_metadata"


class RotarySlotWorker(DepthWorker):
    """Loading this class undoes that one patch in the worker's process."""


setattr(SpecDecodeBaseProposer, NAME, unwrap(getattr(SpecDecodeBaseProposer, NAME)))
