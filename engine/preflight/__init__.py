"""Preflight: the facts of an engine with given arguments, and the obstacles to its start.

It reads only files and the facts of this machine. Nothing is loaded or downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglegate.engine.advisories import Advisory, describe, list_advisories
from eaglegate.engine.machine import Machine, check_hub
from eaglegate.engine.preflight.context import (
    EnginePlan,
    PreflightContext,
    get_stored_scheme,
    list_facts,
    make_context,
    make_plan,
)
from eaglegate.engine.preflight.memory import (
    check_devices,
    check_known_gpus,
    check_memory,
)
from eaglegate.engine.speculation.drafts.inspection import Severity, SpeculationReport
from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    NotDownloaded,
    NotInspectable,
    open_model,
    read_json,
)
from eaglegate.engine.speculation.drafts.inspection.recurrent import RECURRENT_ON_CPU, is_recurrent
from eaglegate.engine.speculation.drafts.inspection.weights import InvalidCheckpoint
from eaglegate.engine.speculation.drafts.naming import explain_missing_target
from eaglegate.engine.vllm_contract import get_vllm_version
from eaglegate.engine.vllm_parts import examine_installed

__all__ = ["EnginePlan", "PreflightReport", "make_plan", "preflight"]


TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json", "tiktoken.model",
    "spiece.model", "vocab.json", "vocab.txt",
)  # fmt: skip
CPU_BACKENDS = ("CPU_ATTN", "CPU_MLA", "AMX_MLA")
GPU_ONLY = ("modelopt", "nvfp4", "fp_quant")


def check_model(scene: PreflightContext) -> Iterator[str]:
    if scene.files.problem:
        hint = explain_missing_target(scene.plan.model, scene.plan.speculative_config)
        yield f"the model cannot be read: {scene.files.problem}{hint}"
    elif not scene.files.downloaded and scene.plan.load_format != "dummy":
        reason = scene.hub()
        if reason:
            yield format_missing(f"the model {scene.plan.model}", reason)


def is_absent(name: str | None) -> bool:
    try:
        return name is not None and open_model(name) is None
    except NotDownloaded:
        return True
    except (NotInspectable, InvalidCheckpoint):
        return False


def format_missing(name: str, reason: str) -> str:
    return f"{name} is not on this machine and cannot be downloaded: {reason}"


def check_draft(scene: PreflightContext) -> Iterator[str]:
    if scene.draft is None:
        return
    if scene.draft.errors:
        problem, *other_problems = scene.draft.outline(Severity.ERROR)
        suffix = f" (`eaglegate check` shows {len(other_problems)} more)" if other_problems else ""
        yield f"the draft cannot work: {problem}{suffix}"
    if not scene.draft.inspected and not scene.draft.errors and is_absent(scene.draft.draft):
        reason = scene.hub()
        if reason:
            yield format_missing(f"the draft {scene.draft.draft}", reason)


def check_tokenizer(scene: PreflightContext) -> Iterator[str]:
    path = scene.files.path if scene.files.downloaded else None
    if path is None or scene.plan.tokenizer not in (None, scene.plan.model):
        return
    if not any((path / name).exists() for name in TOKENIZERS):
        yield f"{path} holds no tokenizer ({', '.join(TOKENIZERS[:3])}, ...)"


def check_sampling_defaults(scene: PreflightContext) -> Iterator[str]:
    path = scene.files.path if scene.files.downloaded else None
    if path is None or scene.plan.generation_config != "auto":
        return
    if (file := path / "generation_config.json").is_file():
        try:
            read_json(file, "generation-config-malformed")
        except InvalidCheckpoint as fault:
            yield f"{fault.found}; {fault.advice}, or leave it unread: --generation-config vllm"


def check_length(scene: PreflightContext) -> Iterator[str]:
    max_model_len = scene.plan.max_model_len
    max_positions = scene.files.target.max_positions if scene.files.target else None
    if max_model_len is not None and max_positions is not None and max_model_len > max_positions:
        yield f"max_model_len is {max_model_len}, the model supports {max_positions}"


def check_head_division(scene: PreflightContext) -> Iterator[str]:
    size, target = scene.plan.tensor_parallel_size, scene.files.target
    heads = target.config.get("num_attention_heads") if target else None
    if isinstance(heads, int) and heads % size:
        yield f"the model's {heads} attention heads do not divide over {size} ranks"


def check_recurrent_target(scene: PreflightContext) -> Iterator[str]:
    target = scene.files.target
    drafts = scene.plan.speculative_config and scene.machine.platform == "cpu"
    if drafts and target is not None and is_recurrent(target.config):
        yield RECURRENT_ON_CPU


def check_attention_backend(scene: PreflightContext) -> Iterator[str]:
    name = scene.plan.attention_backend
    if name and scene.machine.platform == "cpu" and name not in CPU_BACKENDS:
        yield f"attention backend {name} does not run on CPUs; vLLM uses its CPU backend instead"


def check_cpu_scheme(scene: PreflightContext) -> Iterator[str]:
    scheme = f"{scene.plan.quantization or ''} {get_stored_scheme(scene.files) or ''}".lower()
    if scene.machine.platform == "cpu" and any(word in scheme for word in GPU_ONLY):
        yield f"the quantization scheme {scheme.strip()} needs a GPU"


def check_kv_transfer(scene: PreflightContext) -> Iterator[str]:
    for name in scene.plan.kv_transfers:
        yield (
            f"{name} splits prefill and decode, and this gateway passes no parameters on: "
            "every prompt would be read twice; run the pair with vllm serve, without a gateway"
        )


def check_other_nodes(scene: PreflightContext) -> Iterator[str]:
    plan = scene.plan
    if plan.executor == "ray":
        yield "Ray places the workers; the capacity of the cluster was not checked"
    elif plan.nodes > 1:
        yield f"{plan.nodes} nodes: only this node was checked, with {plan.workers} of the workers"


def check_inspected(scene: PreflightContext) -> Iterator[str]:
    if scene.files.unread:
        yield f"the model's files were not inspected: {scene.files.unread}"


def check_download(scene: PreflightContext) -> Iterator[str]:
    if not scene.files.downloaded and scene.hub() is None:
        yield f"{scene.plan.model} is not on this machine; serve would download it"


Check = Callable[[PreflightContext], Iterator[str]]


OBSTACLES: tuple[Check, ...] = (
    check_model,
    check_tokenizer,
    check_sampling_defaults,
    check_draft,
    check_recurrent_target,
    check_devices,
    check_memory,
    check_length,
    check_head_division,
    check_kv_transfer,
)


def check_version(_: PreflightContext) -> Iterator[str]:
    if examination := examine_installed():
        yield examination.explain()


REMARKS: tuple[Check, ...] = (
    check_version,
    check_known_gpus,
    check_attention_backend,
    check_cpu_scheme,
    check_other_nodes,
    check_inspected,
    check_download,
)


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """Result of preflight. ``obstacles`` prevent the start, ``remarks`` do not. Both are
    sentences."""

    facts: Mapping[str, str]
    draft: SpeculationReport | None
    obstacles: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    advisories: tuple[Advisory, ...] = ()
    """Known faults, as far as the arguments decide them."""


def find_advisories(scene: PreflightContext) -> tuple[Advisory, ...]:
    target = scene.files.target
    is_cpu = scene.machine.platform == "cpu"
    settings: dict[str, Any] = dict(vars(scene.plan.arguments)) if scene.plan.arguments else {}
    settings["speculative_config"] = scene.plan.speculative_config
    if is_cpu:
        settings["enforce_eager"] = True  # vLLM has no graphs there, and no second runner
    runner = {"0": False, "1": True}.get(os.environ.get("VLLM_USE_V2_MODEL_RUNNER", ""))
    deployment = describe(
        settings,
        get_vllm_version(),
        recurrent=target is not None and is_recurrent(target.config),
        second_runner=False if is_cpu else runner,
    )
    return list_advisories(deployment)


def preflight(
    plan: EnginePlan, machine: Machine, hub: Callable[[], str | None] = check_hub
) -> PreflightReport:
    scene = make_context(plan, machine, hub)
    return PreflightReport(
        facts=dict(list_facts(scene)),
        draft=scene.draft,
        obstacles=tuple(text for check in OBSTACLES for text in check(scene)),
        remarks=tuple(text for check in REMARKS for text in check(scene)),
        advisories=find_advisories(scene),
    )
