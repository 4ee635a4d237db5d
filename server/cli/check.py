"""The report of ``eaglegate check``: what serve would run, and what would prevent it from
starting.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eaglegate.engine.advisories import refuse_advisories
from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.fleet.types import describe_versions
from eaglegate.engine.fleet.worker import WorkerReport
from eaglegate.engine.machine import Machine, inspect_machine, is_port_free
from eaglegate.engine.preflight import EnginePlan, preflight
from eaglegate.engine.speculation.drafts.inspection import Severity, SpeculationReport
from eaglegate.engine.speculation.drafts.lossy import find_lossy, refuse_lossy
from eaglegate.engine.types import VERSION
from eaglegate.engine.vllm_contract import POD_SCHEDULER
from eaglegate.server.backends.plan import GatewayPlan, find_excess_depth


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The report. ``status`` is the exit status: 0 if nothing would prevent a start."""

    text: str
    status: int


def check(
    plan: EnginePlan, gateway_plan: GatewayPlan, machine: Machine | None = None
) -> CheckReport:
    inspection = preflight(plan, machine or inspect_machine())
    lossy = find_lossy(plan.speculative_config)
    refusals = [refuse_lossy(lossy)] if lossy and gateway_plan.require_lossless else []
    remarks = [*inspection.remarks, *map(str, inspection.advisories)]
    if inspection.advisories and gateway_plan.strict_advisories:
        refusals.append(refuse_advisories(inspection.advisories))
    excess = find_excess_depth(gateway_plan.depth, plan.speculative_config)
    stops = [
        *inspection.obstacles,
        *refusals,
        *excess,
    ]
    lines = ["engine", *align(inspection.facts)]
    lines += ["", "speculation", *format_speculation(inspection.draft)]
    if plan.speculative_config:
        lines += ["", "inside vllm serve, without a gateway", *align(format_pod(plan))]
    return conclude(lines, gateway_plan, stops, remarks)


def format_pod(plan: EnginePlan) -> dict[str, str]:
    """Describe the same engine as a pod (docs/pod.md)."""
    speculation = json.dumps(plan.speculative_config)
    words = ["vllm", "serve", plan.model, "--speculative-config", speculation]
    words += ["--scheduler-cls", POD_SCHEDULER]
    return {
        "command": f"{shlex.join(words)}, and your other flags",
        "it gets": "an inspected draft, a depth by cost at every step, gauges eaglegate_pod_*",
        "it lacks": "workloads, keys, audits, canaries, a depth by header: they need a gateway",
    }


def check_workers(
    model: Mapping[str, str],
    workers: Mapping[str, WorkerReport | EngineStartError],
    gateway_plan: GatewayPlan,
) -> CheckReport:
    """Check a gateway without an engine of its own by querying its workers."""
    failures = [str(answer) for answer in workers.values() if isinstance(answer, EngineStartError)]
    stops, remarks = (failures, []) if len(failures) == len(workers) else ([], failures)
    versions = describe_versions(
        {
            address: answer.info.details.get(VERSION)
            for address, answer in workers.items()
            if isinstance(answer, WorkerReport)
        }
    )
    remarks += [versions] if versions else []
    remarks += [
        f"worker {address}: {finding.text}"
        for address, answer in workers.items()
        if isinstance(answer, WorkerReport)
        for finding in answer.findings
    ]
    lines = ["model", *align(model)]
    for address, answer in workers.items():
        lines += ["", f"worker {address}", *_format_worker(answer)]
    return conclude(lines, gateway_plan, stops, remarks)


def _format_worker(answer: WorkerReport | EngineStartError) -> list[str]:
    if isinstance(answer, EngineStartError):
        return [f"  {answer}"]
    info = answer.info
    details = {name: text for name, text in info.details.items() if name != "worker"}
    faults = ", ".join(finding.kind.value for finding in answer.findings)
    return align(
        {
            "model": info.model,
            "context": f"{info.max_model_len} tokens",
            "input": info.input_summary,
            "speculation": info.speculation.summary,
            **details,
            **({"faults": f"{faults} (see the remarks)"} if faults else {}),
        }
    )


def check_port(plan: GatewayPlan) -> Iterator[str]:
    if plan.port and not is_port_free(plan.host, plan.port, shared=plan.reuse_port):
        yield f"port {plan.port} on {plan.host} is in use: give another --port"


def format_speculation(report: SpeculationReport | None) -> Iterator[str]:
    if report is None:
        yield "  off"
        return
    yield f"  {report.summary}"
    yield from align(report.facts)
    for severity in Severity:
        yield from (f"  {text}" for text in report.outline(severity))


def align(facts: Mapping[str, str]) -> list[str]:
    width = max(map(len, facts), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in facts.items()]


def conclude(
    lines: list[str], plan: GatewayPlan, stops: list[str], remarks: Sequence[str]
) -> CheckReport:
    """Add the gateway's part, and what would prevent a start."""
    lines = [*lines, "", "parsers", *align(plan.parsers), ""]
    if plan.settings:
        lines += ["settings that differ from their defaults", *align(plan.settings), ""]
    else:
        lines += ["settings", "  all have their defaults (eaglegate serve --help)", ""]
    if remarks:
        lines += ["remarks", *(f"  {text}" for text in remarks), ""]
    stops = [*stops, *plan.unknown, *check_port(plan)]
    if stops:
        lines.append("The command line is valid. It cannot start here:")
        lines += [f"  - {text}" for text in stops]
    else:
        lines.append("Nothing found would stop it from starting here.")
    return CheckReport("\n".join(lines), 1 if stops else 0)
