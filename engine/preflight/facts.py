"""What an engine would be, as names and values to print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.machine import GIB, Machine
from engine.preflight.scene import LocalCheckpoint, PreflightContext


def list_facts(scene: PreflightContext) -> Iterator[tuple[str, str]]:
    plan, found, machine = scene.plan, scene.found, scene.machine
    yield "model", plan.model
    yield "where", str(found.path.resolve()) if found.path else "not on this machine"
    names = found.raw.get("architectures")
    if isinstance(names, list) and names:
        yield "architecture", str(names[0])
    if found.target is not None:
        yield "layers", f"{found.target.num_layers}, hidden size {found.target.hidden_size}"
        yield "vocabulary", str(found.target.vocab_size)
    yield "dtype", format_resolved(plan.dtype, get_stored_dtype(found))
    yield "quantisation", plan.quantization or get_stored_scheme(found) or "none"
    longest = found.target.max_positions if found.target else None
    yield "max_model_len", format_resolved(str(plan.max_model_len or "auto"), longest)
    yield "tensor parallel", str(plan.tensor_parallel_size)
    if plan.pipeline_parallel_size * plan.data_parallel_size * plan.nodes > 1:
        yield (
            "pipeline, data, nodes",
            (f"{plan.pipeline_parallel_size}, {plan.data_parallel_size}, {plan.nodes}"),
        )
    yield "attention backend", plan.attention_backend or "chosen by vLLM"
    if found.checkpoint is not None:
        yield "weights", format_bytes(found.checkpoint.num_bytes)
    yield "this machine", describe_machine(machine)


def format_resolved(asked: str, known: object) -> str:
    return f"auto, here {known}" if asked == "auto" and known is not None else asked


def get_stored_dtype(found: LocalCheckpoint) -> object:
    config = found.target.config if found.target else {}
    return config.get("dtype") or config.get("torch_dtype") or found.raw.get("torch_dtype")


def get_stored_scheme(found: LocalCheckpoint) -> str | None:
    """The scheme named in config.json, with its algorithm where there is one."""
    scheme = found.raw.get("quantization_config")
    if not isinstance(scheme, Mapping):
        return None
    words = (scheme.get("quant_method"), scheme.get("quant_algo"))
    return " ".join(str(word) for word in words if word) or "unnamed scheme"


def describe_machine(machine: Machine) -> str:
    if machine.gpus:
        return f"{len(machine.gpus)} x {machine.gpus[0].name}, {machine.cores} cores"
    built = f"vLLM for {machine.platform}" if machine.platform != "none" else "no vLLM installed"
    return f"{machine.cores} cores, {format_bytes(machine.free_memory)} free, no GPU; {built}"


def format_bytes(num_bytes: float) -> str:
    return (
        f"{num_bytes / GIB:.1f} GiB" if num_bytes >= 0.1 * GIB else f"{num_bytes / 2**20:.0f} MiB"
    )
