"""Metrics of what the gateway runs on: its process, GPUs, engines and workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from eaglegate.engine.fleet.types import (
    FindingKind,
    RoutingReason,
    WorkerFinding,
    WorkerState,
    WorkerStatus,
)
from eaglegate.engine.machine import GpuReading, NvmlGpu, find_gpu_monitors
from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.engine.supervision.policy import LossCause, RecoveryOutcome
from eaglegate.engine.totals import Totals
from eaglegate.observability.engine import SupervisionObserver
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.metrics.engine import HELP, MOST
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from tests.observability.scene import make_telemetry, read, read_page


def test_every_value_of_the_process_that_is_known_is_shown(telemetry):
    assert "\neaglegate_memory" not in read_page(telemetry)
    telemetry.scope.process = lambda: dict.fromkeys(HELP, 3.0) | {"memory_shedding": True}
    assert read(telemetry, "memory_shedding") == 1
    assert {read(telemetry, name) for name in set(HELP) - {"memory_shedding"}} == {3.0}


def test_losses_and_what_became_of_requests_are_counted(telemetry):
    watch = SupervisionObserver(telemetry)
    watch.record_loss(LossCause.HUNG)
    watch.record_interruption(RecoveryOutcome.RESUMED, "r-1")
    assert read(telemetry, "engine_losses_total", cause="hung", engine="default") == 1
    assert read(telemetry, "interrupted_requests_total", outcome="resumed") == 1
    assert read(telemetry, "engine_up", engine="default") == 0
    watch.record_recovery(DEFAULT_INFO, 3.5)
    assert read(telemetry, "engine_up", engine="default") == 1
    assert read(telemetry, "engine_start_seconds", engine="default") == 3.5


@dataclass
class Told:
    index: int
    reading: GpuReading

    def read(self) -> GpuReading:
        return self.reading


def test_each_gpu_has_its_own_and_untold_values_are_absent():
    told = (Told(0, GpuReading(3, 4, 0.5, None)), Told(1, GpuReading(1, 4, None, 70.0)))
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",)), gpus=told)
    values = [
        [read(telemetry, f"gpu_{name}", gpu=gpu) for gpu in "01"]
        for name in ("memory_used_bytes", "utilization_ratio", "power_watts")
    ]
    assert values == [[3, 1], [0.5, None], [None, 70]]


class Nvml:
    """A driver that tells memory and nothing else."""

    class NVMLError(Exception):
        pass

    @dataclass
    class Memory:
        used: int = 5
        total: int = 8

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return self.Memory()

    def nvmlDeviceGetUtilizationRates(self, handle):
        raise self.NVMLError("not supported")

    nvmlDeviceGetPowerUsage = nvmlDeviceGetUtilizationRates


def test_readings_that_a_driver_does_not_support_are_none():
    assert NvmlGpu(Nvml(), 0).read() == GpuReading(5, 8, None, None)


def test_monitors_of_this_machine_can_be_read():
    for gpu in find_gpu_monitors():
        assert gpu.read().memory_total_bytes != 0


@pytest.mark.parametrize("prefix", ["eaglegate_gpu_", "eaglegate_worker_"])
def test_without_gpus_and_workers_there_are_no_series(prefix):
    names = [family.samples for family in watching().registry.collect()]
    assert not [sample for samples in names for sample in samples if sample.name.startswith(prefix)]


COUNTED = Totals(verify_steps=10, proposed=30, accepted=15)


def status(
    name: str, state: WorkerState = WorkerState.SERVING, counted: Totals | None = None
) -> WorkerStatus:
    requests = dict.fromkeys((why.value for why in RoutingReason), 1) | {"session": 4}
    return WorkerStatus(name, state, "", 2, 150.5, requests, 90, 3, 1, 1, counted)


def watching(*workers: WorkerStatus) -> Telemetry:
    telemetry = make_telemetry()
    telemetry.scope.workers = lambda: workers
    return telemetry


def test_each_worker_has_its_series():
    workers = status("http://a", counted=COUNTED), status("http://b", WorkerState.OPEN)
    telemetry = watching(*workers)
    assert read(telemetry, "worker_state", worker="http://b", state="open") == 1
    assert read(telemetry, "worker_state", worker="http://b", state="serving") == 0
    assert read(telemetry, "worker_requests_total", worker="http://a", why="session") == 4
    assert read(telemetry, "worker_outstanding_tokens", worker="http://a") == 150.5
    assert read(telemetry, "worker_moved_requests_total", worker="http://a", how="retried") == 3
    accepted = [read(telemetry, "worker_accepted_tokens_total", worker=w.name) for w in workers]
    assert accepted == [15, None], "unknown is not nought"


def test_a_great_many_workers_are_added_up():
    telemetry = watching(*(status(f"http://{at:03}") for at in range(MOST + 7)))
    assert read(telemetry, "worker_tokens_total", worker="other") == 7 * 90
    assert read(telemetry, "worker_state", worker="other", state="serving") == 7
    families = {family.name: family for family in telemetry.registry.collect()}
    assert len(families["eaglegate_worker_tokens"].samples) == MOST + 1


def test_the_page_gets_the_workers():
    (row,) = summarize_speculation(watching(status("http://a", counted=COUNTED)))["workers"]
    assert (row["name"], row["state"], row["acceptance_length"]) == ("http://a", "serving", 2.5)
    assert summarize_speculation(watching())["workers"] == []


def test_findings_of_the_probe_are_in_the_metrics_and_on_the_page():
    text = "it has another chat template: start both with the same --chat-template"
    finding = WorkerFinding(FindingKind.TEMPLATE, text)
    telemetry = watching(replace(status("http://a"), findings=(finding,)), status("http://b"))
    assert read(telemetry, "worker_findings", worker="http://a", kind="template") == 1
    assert read(telemetry, "worker_findings", worker="http://b", kind="template") is None
    rows = summarize_speculation(telemetry)["workers"]
    assert [row["findings"] for row in rows] == [({"kind": "template", "text": text},), ()]
