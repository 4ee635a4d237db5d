"""Inputs of preflight: the engine arguments, this machine and the model files on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.speculation.accounts.prefix_cost import find_prefix_cost
from eaglegate.engine.speculation.drafts.inspection import SpeculationReport, inspect_draft
from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    Checkpoint,
    NotDownloaded,
    NotInspectable,
    locate,
    open_model,
    read_config,
)
from eaglegate.engine.speculation.drafts.inspection.configs import (
    TEXT_PARTS,
    TargetConfig,
    read_target,
)
from eaglegate.engine.speculation.drafts.inspection.weights import InvalidCheckpoint
from eaglegate.engine.speculation.drafts.naming import SHORT, name_speculation
from eaglegate.engine.types import TEXT_AND_IMAGES, TEXT_ONLY
from eaglegate.engine.vllm_contract import find_vllm

SHRINKING = ("quantization", "quantization_config", "cpu_offload_gb", "offload_group_size")
"""Arguments with which the weights in a GPU's memory are smaller than the stored ones."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The engine arguments that decide if the engine can start here."""

    model: str
    revision: str | None = None
    tokenizer: str | None = None
    dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    attention_backend: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    prefill_context_parallel_size: int = 1
    data_parallel_size: int = 1
    local_data_parallel_size: int | None = None
    nodes: int = 1
    executor: str | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_bytes: int | None = None
    shrinks_weights: bool = False
    """True if the arguments quantize stored weights, or keep some in the host's memory."""
    device_ids: tuple[str, ...] = ()
    load_format: str = "auto"
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values that override the model's config.json."""
    speculative_config: Mapping[str, Any] | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Folders of LoRA adapters, by name."""
    block_size: int | None = None
    """Tokens per block of the KV cache; None leaves the size to vLLM."""
    prefix_caching: bool = True
    language_model_only: bool = False
    """True if the model's encoder of images is left out."""
    kv_connector: bool = False
    """True if a KV connector shares the cache's blocks with other engines."""
    kv_transfers: tuple[str, ...] = ()
    """KV connectors that take prompts from a prefill engine or hand them to a decode engine."""
    generation_config: str = "auto"
    """Where vLLM reads the sampling defaults: ``auto`` for the model's folder, ``vllm`` for
    none."""
    seed: int | None = None
    arguments: Any = None
    """The arguments that the plan was made of."""

    @property
    def workers(self) -> int:
        """Number of worker processes on this machine, each with its own device."""
        local_replicas = self.local_data_parallel_size
        return -(-self.ranks // self.nodes) * (
            self.data_parallel_size if local_replicas is None else local_replicas
        )

    @property
    def ranks(self) -> int:
        """Number of workers of one replica, on all nodes."""
        model_ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        return model_ranks * self.prefill_context_parallel_size


def make_plan(arguments: Any, adapters: Mapping[str, str] | None = None) -> EnginePlan:
    """Make a plan from the engine's arguments, or from a parsed command line that names a model.

    Absent arguments keep their default. Values are not adjusted to this machine, so that a command
    line for a larger machine can be checked here. Raises EngineStartError if settings contradict
    each other.
    """
    model = getattr(arguments, "model_tag", None) or arguments.model
    parts = ("revision", "speculative_config", *SHORT)
    settings = {name: getattr(arguments, name, None) for name in parts}
    settings = name_speculation({**settings, "model": str(model)})
    speculation = settings["speculative_config"]
    overrides = getattr(arguments, "hf_overrides", None)
    names = ("tokenizer", "quantization", "max_model_len")
    splits = ("tensor", "pipeline", "prefill_context", "data")
    sizes = [f"{kind}_parallel_size" for kind in splits]
    options: dict[str, Any] = {name: getattr(arguments, name, None) for name in names}
    options |= {name: getattr(arguments, name, None) or 1 for name in sizes}
    return EnginePlan(
        model=settings["model"],
        revision=settings["revision"],
        **options,
        dtype=str(getattr(arguments, "dtype", "auto")),
        attention_backend=get_backend_name(getattr(arguments, "attention_backend", None)),
        local_data_parallel_size=count_local_replicas(arguments),
        nodes=getattr(arguments, "nnodes", None) or 1,
        executor=get_executor_name(getattr(arguments, "distributed_executor_backend", None)),
        gpu_memory_utilization=getattr(arguments, "gpu_memory_utilization", None) or 0.9,
        kv_cache_bytes=getattr(arguments, "kv_cache_memory_bytes", None),
        language_model_only=bool(getattr(arguments, "language_model_only", None)),
        kv_connector=getattr(arguments, "kv_transfer_config", None) is not None,
        kv_transfers=tuple(list_transfers(getattr(arguments, "kv_transfer_config", None))),
        shrinks_weights=any(getattr(arguments, name, None) for name in SHRINKING),
        device_ids=tuple(map(str, getattr(arguments, "device_ids", None) or ())),
        hf_overrides=overrides if isinstance(overrides, Mapping) else {},
        load_format=str(getattr(arguments, "load_format", "auto")),
        speculative_config=dict(speculation) if speculation else None,
        adapters=adapters or {},
        block_size=getattr(arguments, "block_size", None),
        prefix_caching=getattr(arguments, "enable_prefix_caching", None) is not False,
        generation_config=getattr(arguments, "generation_config", None) or "auto",
        seed=getattr(arguments, "seed", None) or None,
        arguments=arguments,
    )


TRANSFERS = ("Nixl", "P2pNccl", "MooncakeConnector", "MoRIIO")
"""How the names begin of vLLM's connectors between a prefill and a decode engine. The others keep
blocks in memory or storage.
"""


def list_transfers(config: Any) -> Iterator[str]:
    """Yield the connectors of a ``kv_transfer_config`` that split prefill and decode."""
    if config is None:
        return
    read = config.get if isinstance(config, Mapping) else partial(getattr, config)
    name, role = str(read("kv_connector", None)), read("kv_role", None)
    if name.startswith(TRANSFERS) or role in ("kv_producer", "kv_consumer"):
        yield name
    for inner in (read("kv_connector_extra_config", None) or {}).get("connectors", ()):
        yield from list_transfers(inner)


def count_local_replicas(arguments: Any) -> int | None:
    """Return the number of replicas on this node; None if it follows from the other sizes."""
    rank = getattr(arguments, "data_parallel_rank", None)
    if rank is not None or getattr(arguments, "data_parallel_external_lb", False):
        return 1
    return getattr(arguments, "data_parallel_size_local", None)


def get_backend_name(value: Any) -> str | None:
    """Return the name of an attention backend, which vLLM gives as an enum and the command line as
    text."""
    return None if value is None else str(getattr(value, "name", value)).upper()


def get_executor_name(value: Any) -> str | None:
    """Return the name of an executor, which is given as text or as a custom class."""
    return value if value is None or isinstance(value, str) else getattr(value, "__name__", "own")


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """Files of the target on this machine."""

    path: Path | None = None
    target: TargetConfig | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    problem: str | None = None
    unread: str | None = None
    """Reason why the checkpoint was not inspected, though it may be on this machine."""

    @property
    def downloaded(self) -> bool:
        return any(fact is not None for fact in (self.checkpoint, self.problem, self.unread))


@dataclass(frozen=True, slots=True)
class PreflightContext:
    """Inputs of every check."""

    plan: EnginePlan
    machine: Machine
    files: LocalCheckpoint
    draft: SpeculationReport | None
    draft_checkpoint: Checkpoint | None
    hub: Callable[[], str | None]


def make_context(
    plan: EnginePlan, machine: Machine, hub: Callable[[], str | None]
) -> PreflightContext:
    local = find_checkpoint(plan)
    return PreflightContext(
        plan, machine, local, inspect_plan(plan, local), find_draft(plan), cache(hub)
    )


def find_checkpoint(plan: EnginePlan) -> LocalCheckpoint:
    try:
        path = locate(plan.model, plan.revision)
        config = overlay_config(read_config(path), plan.hf_overrides)
    except NotDownloaded:
        return LocalCheckpoint()
    except NotInspectable as reason:
        return LocalCheckpoint(unread=str(reason))
    except InvalidCheckpoint as fault:
        return LocalCheckpoint(problem=f"{fault.found}; {fault.advice}")
    target = read_target(config, str(path))
    try:
        return LocalCheckpoint(path, target, config, open_model(plan.model, plan.revision))
    except NotDownloaded:
        return LocalCheckpoint(path, target, config)
    except InvalidCheckpoint as fault:
        dummy = plan.load_format == "dummy"
        return LocalCheckpoint(
            path, target, config, problem=None if dummy else f"{fault.found}; {fault.advice}"
        )


def overlay_config(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Overlay a config as vLLM does: merge the text model's part, and replace any other value."""
    result = dict(config)
    for name, value in overrides.items():
        base = result.get(name)
        is_text_part = (
            name in TEXT_PARTS and isinstance(value, Mapping) and isinstance(base, Mapping)
        )
        result[name] = overlay_config(base, value) if is_text_part else value  # type: ignore[arg-type]
    return result


def inspect_plan(plan: EnginePlan, local: LocalCheckpoint) -> SpeculationReport | None:
    if plan.speculative_config is None:
        return None
    return inspect_draft(
        plan.model,
        plan.speculative_config,
        tensor_parallel_size=plan.tensor_parallel_size,
        max_model_len=plan.max_model_len,
        target_config=local.raw or None,
    )


def find_draft(plan: EnginePlan) -> Checkpoint | None:
    name = (plan.speculative_config or {}).get("model")
    try:
        return open_model(name) if isinstance(name, str) else None
    except (NotInspectable, InvalidCheckpoint):
        return None


def list_facts(scene: PreflightContext) -> Iterator[tuple[str, str]]:
    plan, local, machine = scene.plan, scene.files, scene.machine
    yield "model", plan.model
    yield "where", str(local.path.resolve()) if local.path else "not on this machine"
    names = local.raw.get("architectures")
    if isinstance(names, list) and names:
        yield "architecture", str(names[0])
    if local.target is not None:
        yield "layers", f"{local.target.num_layers}, hidden size {local.target.hidden_size}"
        yield "vocabulary", str(local.target.vocab_size)
    if local.raw:
        reads_images = "vision_config" in local.raw and not plan.language_model_only
        yield "input", TEXT_AND_IMAGES if reads_images else TEXT_ONLY
    yield "dtype", format_resolved(plan.dtype, get_stored_dtype(local))
    unknown_scheme = "none" if local.raw else "unknown until the model is here"
    yield "quantisation", plan.quantization or get_stored_scheme(local) or unknown_scheme
    max_positions = local.target.max_positions if local.target else None
    yield "max_model_len", format_resolved(str(plan.max_model_len or "auto"), max_positions)
    yield "tensor parallel", str(plan.tensor_parallel_size)
    if plan.pipeline_parallel_size * plan.data_parallel_size * plan.nodes > 1:
        yield (
            "pipeline, data, nodes",
            (f"{plan.pipeline_parallel_size}, {plan.data_parallel_size}, {plan.nodes}"),
        )
    if plan.adapters:
        yield "adapters", ", ".join(plan.adapters)
    if plan.seed is not None:
        yield "seed", str(plan.seed)
    yield "attention backend", plan.attention_backend or "chosen by vLLM"
    if plan.speculative_config is not None and local.target is not None:
        yield "prefix cache", describe_prefix_cache(scene)
    if local.checkpoint is not None:
        yield "weights", format_bytes(local.checkpoint.num_bytes)
    if (package := find_vllm()) is not None:
        yield "vLLM", package[1]
    yield "this machine", describe_machine(machine)


DEFAULT_BLOCKS = {"cpu": 128, "cuda": 16}
"""vLLM's default block sizes by platform. Some attention backends set their own."""


def describe_prefix_cache(scene: PreflightContext) -> str:
    """Describe the draft's cost per prefix cache hit, as far as it is known before the start."""
    plan = scene.plan
    if not plan.prefix_caching:
        return "off"
    target = scene.files.target.config if scene.files.target else {}
    size = plan.block_size or DEFAULT_BLOCKS.get(scene.machine.platform)
    method = None if scene.draft is None else scene.draft.facts.get("method for vLLM")
    cost = find_prefix_cost(plan.speculative_config, target, size, method, plan.kv_connector)
    return cost.explain() if cost is not None else "no draft"


def format_resolved(setting: str, default: object) -> str:
    return f"auto, here {default}" if setting == "auto" and default is not None else setting


def get_stored_dtype(local: LocalCheckpoint) -> object:
    config = local.target.config if local.target else {}
    return config.get("dtype") or config.get("torch_dtype") or local.raw.get("torch_dtype")


def get_stored_scheme(local: LocalCheckpoint) -> str | None:
    """Return the quantization scheme in config.json, with its algorithm if it names one."""
    scheme = local.raw.get("quantization_config")
    if not isinstance(scheme, Mapping):
        return None
    words = (scheme.get("quant_method"), scheme.get("quant_algo"))
    return " ".join(str(word) for word in words if word) or "unnamed scheme"


def describe_machine(machine: Machine) -> str:
    if machine.gpus:
        counts = Counter(gpu.name for gpu in machine.gpus)
        gpus = ", ".join(f"{count} x {name}" for name, count in counts.items())
        return f"{gpus}, {machine.cores} cores"
    build = f"vLLM for {machine.platform}" if machine.platform != "none" else "no vLLM installed"
    gpus = "GPUs unknown" if machine.gpus is None and machine.platform != "cpu" else "no GPU"
    return f"{machine.cores} cores, {format_bytes(machine.free_memory)} free, {gpus}; {build}"


def format_bytes(num_bytes: float) -> str:
    return (
        f"{num_bytes / GIB:.1f} GiB" if num_bytes >= 0.1 * GIB else f"{num_bytes / 2**20:.0f} MiB"
    )
