"""vLLM's attention uses AMX without asking Linux for its registers, and SIGILL ends the engine
(csrc/cpu/cpu_attn_amx.hpp)."""

from __future__ import annotations

import torch

from eaglegate.engine.vllm_backend.patches import Wrap

THREAD = UNTIL = ""


def patch(_: Wrap) -> None:
    torch.cpu._init_amx()  # returns False on a CPU without AMX
