"""The start of a pod: arguments, refusals, gauges. Loaded only where the pod's scheduler is asked
for."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

import eaglegate
from eaglegate.engine.advisories import describe, list_advisories, refuse_advisories
from eaglegate.engine.machine import inspect_machine
from eaglegate.engine.preflight import make_plan, preflight
from eaglegate.engine.vllm_backend.arguments import declare_graphs, refuse_config
from eaglegate.engine.vllm_backend.class_names import WORKER
from eaglegate.engine.vllm_backend.refused_fields import allow_in_process
from eaglegate.engine.vllm_contract import DRAFT_K, LEFT_OUT, get_vllm_version
from eaglegate.engine.vllm_parts import Promise, examine_installed
from eaglegate.features.pod.engine.gauges import PodCollector, publish
from eaglegate.features.pod.engine.record import PodRecord
from eaglegate.features.pod.engine.settings import KEY, PodSettings

log = logging.getLogger("vllm.eaglegate.start")
FIELDS = (
    "speculative_config", "additional_config", "scheduler_cls", "max_num_seqs",
    "compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size",
)  # fmt: skip
"""Fields of vLLM's EngineArgs that a pod may change."""


def prepare(arguments: Any, settings: PodSettings) -> None:
    """Inspect the draft, and complete vLLM's EngineArgs in place. Raises ValueError
    and ConfigError.

    Seeds stay vLLM's own, so the patches for them are left out.
    """
    if (examination := examine_installed()) is not None and examination.broken:
        raise ValueError(examination.explain())
    report = preflight(make_plan(arguments), inspect_machine())
    if report.obstacles and settings.preflight:
        raise ValueError("; ".join(report.obstacles) + " (EAGLEGATE_PREFLIGHT=0 starts anyway)")
    if report.draft is None:
        log.warning("eaglegate: --speculative-config names no draft, so there is nothing to plan")
        return
    log.info("eaglegate: draft: %s", report.draft.summary)
    for finding in report.draft.warnings:
        log.warning("eaglegate: draft: %s", finding)
    choices = {name: getattr(arguments, name) for name in FIELDS}
    additional = dict(choices["additional_config"] or {})
    choices["additional_config"] = additional | {KEY: asdict(settings)}
    if settings.lookup and DRAFT_K not in additional:
        from eaglegate.features.lookups.settings import LookupSettings

        choices = LookupSettings(lookup=settings.lookup).configure_engine(choices)
    if not current_platform.is_cpu():
        choices = declare_graphs(choices, settings.depth)
    for name, value in choices.items():
        setattr(arguments, name, value)
    os.environ[LEFT_OUT] = f"{Promise.SEEDS},{Promise.AUDITS}"
    if arguments.worker_extension_cls in ("", WORKER):
        arguments.worker_extension_cls = WORKER
        allow_in_process()
    else:
        log.warning(
            "eaglegate: --worker-extension-cls %s stays, so steps at depth 0 still run the draft",
            arguments.worker_extension_cls,
        )


def refuse(config: VllmConfig, settings: PodSettings) -> None:
    """Raise ValueError if this configuration would be wrong, and log advisories."""
    refuse_config(config)
    advisories = list_advisories(describe(config, get_vllm_version()))
    if advisories and settings.strict_advisories:
        raise ValueError(refuse_advisories(advisories, "strict_advisories"))
    for advisory in advisories:
        log.warning("eaglegate: %s", advisory)


def publish_gauges(record: PodRecord, settings: PodSettings) -> None:
    info = {
        "version": eaglegate.__version__,
        "vllm": get_vllm_version() or "unknown",
        "depth": settings.depth,
        "lookup": str(settings.lookup),
    }
    publish(PodCollector(record, info))
