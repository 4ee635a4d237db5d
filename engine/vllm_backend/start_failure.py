"""The sentence that explains why an engine did not start: cause, place in the code, and remedy."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from eaglegate.engine.vllm_backend.child_log import PREFIX, find_cause_line, read_cause, redact_tail

ROOT = Path(__file__).resolve().parents[2]
PROCESS_END = re.compile(r"Failed core proc\(s\): {(?:.*?: -(\d+))?")
"""vLLM's report of an engine process that ended before it was ready. The signal may be unknown."""
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
VLLM = re.compile(r".*/(vllm/.+)")
NATIVE = re.compile(r"error|what\(\):|assert|abort|invalid", re.IGNORECASE)
"""Errors of native code, which have no traceback."""
REMEDIES = (
    (
        r"No module named '?flashinfer|flashinfer\S* (is not|not) (installed|available)",
        "VLLM_USE_FLASHINFER_SAMPLER=0 in the environment does without FlashInfer's sampler, and "
        "'pip install flashinfer-python' brings it",
    ),
    (
        r"Free memory on device|less than desired GPU memory utilization",
        "give a smaller --gpu-memory-utilization, or end what else uses the GPU (nvidia-smi)",
    ),
    (
        r"No available memory for the cache blocks|KV cache is needed|available KV cache memory",
        "give a larger --gpu-memory-utilization or a smaller --max-model-len",
    ),
    (
        r"OutOfMemoryError|CUDA out of memory|ended by SIGKILL",
        "give a smaller --gpu-memory-utilization, --max-num-seqs or --max-model-len, or split the "
        "model with --tensor-parallel-size; on a CPU, a smaller --kv-cache-memory-bytes",
    ),
    (
        r"Bfloat16 is only supported",
        "--dtype half runs on GPUs of compute capability below 8.0",
    ),
    (
        r"kernel image is (available|invalid)|invalid device function|compute capability|\bsm_\d+",
        "this build of vLLM or this backend lacks kernels for the GPU's compute capability: "
        "install a build for it, or choose another --attention-backend, --quantization or --dtype",
    ),
    (
        r"nvcc|CUDA_HOME|ninja|Python\.h",
        "kernels are compiled at the start: install the CUDA toolkit, ninja and the headers of "
        "Python, or set VLLM_USE_FLASHINFER_SAMPLER=0 if FlashInfer asks for them",
    ),
    (
        r"cannot open shared object|undefined symbol|driver version is insufficient",
        "vLLM, PyTorch and the driver do not fit together: install the CUDA build of vLLM that "
        "the driver supports (nvidia-smi shows its CUDA version)",
    ),
    (
        r"SIGBUS|Bus error|/dev/shm|shared memory|No space left on device",
        "the container has too little shared memory: docker run --ipc=host or --shm-size=8g; in "
        "Kubernetes an emptyDir of medium Memory at /dev/shm",
    ),
    (
        r"NCCL",
        "NCCL_DEBUG=INFO shows what fails; NCCL_P2P_DISABLE=1 helps where GPUs cannot reach each "
        "other's memory, and NCCL_SOCKET_IFNAME names the network",
    ),
    (
        r"ended by SIGILL",
        "the kernels use instructions that this CPU does not have: --dtype float32 uses fewer",
    ),
)  # fmt: skip
"""Patterns of a cause, each with what avoids it. The first match counts."""


def explain_failure(lines: Sequence[str], error: Exception, exit_name: str) -> str:
    """Return one sentence with the cause, the last frame in vLLM's or this code, and the remedy.

    ``lines`` is the log of the engine's processes; ``exit_name`` names the signal or status with
    which one of them ended, if it did.
    """
    end = find_cause_line(lines)
    has_exited = end is None and bool(exit_name or PROCESS_END.search(str(error)))
    if end is not None:
        cause, frames = read_cause(lines[end]), lines[:end]
    else:
        cause, frames = summarize_error(error), traceback.format_exception(error)
        if exit_name and exit_name not in cause:
            cause = f"the engine process ended by {exit_name}"
        if has_exited and (line := find_native_error(lines)):
            cause += f": {line}"
    frame = "" if has_exited else find_frame(frames)
    remedy = find_remedy(cause)
    return cause + (f" ({frame})" if frame else "") + (f"; {remedy}" if remedy else "")


def find_native_error(lines: Sequence[str]) -> str:
    """Return the last error that C++ wrote to the log before it ended its process; else empty."""
    native_lines = [line for line in lines if not (match := PREFIX.match(line)) or not match[2]]
    return next(
        (line for line in reversed(redact_tail(native_lines, 20)) if NATIVE.search(line)), ""
    )


def find_frame(lines: Sequence[str]) -> str:
    """Return the last frame of the last traceback in vLLM's code or this one.

    For example ``vllm/v1/sample/sampler.py:88, in __init__``; empty without such a frame.
    """
    for line in reversed(lines):
        if line.rstrip().endswith("Traceback (most recent call last):"):
            break
        if (match := FRAME.search(line)) and (source := _name_source(match[1])):
            return f"{source}:{match[2]}, in {match[3]}"
    return ""


def _name_source(path: str) -> str:
    """Return the path inside vLLM or eaglegate; empty for a file of another package."""
    if match := VLLM.fullmatch(path):
        return match[1]
    source = Path(path).resolve()
    is_inside = source.is_relative_to(ROOT) and "-packages/" not in path
    return str(source.relative_to(ROOT)) if is_inside else ""


def find_remedy(cause: str) -> str:
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, cause)), "")


def summarize_error(error: Exception) -> str:
    """Return the error as one sentence."""
    from pydantic import ValidationError

    if match := PROCESS_END.search(str(error)):
        cause = f" by {signal.Signals(int(match[1])).name}" if match[1] else ""
        return f"the engine process ended{cause} while it started"
    if isinstance(error, ValidationError):
        return "; ".join(entry["msg"] for entry in error.errors())
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
