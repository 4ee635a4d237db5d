from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from eaglegate.engine.base import SupportsUnclaimed
from eaglegate.engine.events import Ending, Finish, Usage
from eaglegate.engine.scripted import DEFAULT_INFO, ScriptedEngine, steps
from eaglegate.engine.steps import read_steps
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    DecodeStep,
    EngineRequest,
    Sampling,
    SpeculationInfo,
    Step,
    UndraftedReason,
)
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.facts import EngineStarted, GatewayStarted
from eaglegate.observability.pages import render_metrics, summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.text.events import ContentDelta, FinishReason, Outcome, ToolCallEnd, ToolCallStart
from tests.observability.scene import begin, read, read_page

LABELS = {"model": "m", "lane": "default", "workload": "chat"}
TEXT = ContentDelta("x")


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    telemetry.settle()
    return read(telemetry, name, **LABELS, **labels)


async def generate(telemetry, choice, script, events=(TEXT,), max_tokens=99, id="r-0") -> None:
    """One choice as the server runs it: a step, its events, the next step."""
    engine = InstrumentedEngine(ScriptedEngine(script), telemetry)
    request = EngineRequest(id, (1, 2, 3), Sampling(max_tokens=max_tokens))
    async with aclosing(read_steps(engine.generate, request)) as stream:
        async for _ in stream:
            for event in events:
                choice(event)


async def answer(telemetry, script, max_tokens=99, **usage) -> None:
    observation = begin(telemetry)
    choice = observation.choice("r-0")
    await generate(telemetry, choice, script, max_tokens=max_tokens)
    tokens = min(max_tokens, sum(len(step.token_ids) for step in script))
    choice(Finish("stop", Usage(3, tokens, **usage)))
    observation.end(Ending.COMPLETED)


async def test_counts_what_the_engine_accounted_for(telemetry):
    script = [
        Step((1,)),
        Step((2, 3, 4), decode=(DecodeStep(3, 2, 3),)),
        Step((5,), decode=(DecodeStep(3, 0, 1),)),
        Step((6,), decode=(DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED),)),
        Step((7, 8), decode=(DecodeStep(3, 1, 2),), finish=FinishReason.STOP),
    ]
    await answer(telemetry, script, cached=2, recomputed=1)
    counts = {
        "verify_steps": 3,
        "drafted_tokens": 9,
        "accepted_tokens": 3,
        "completion_tokens": 8,
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "draft_recomputed_tokens": 1,
    }
    assert {name: value(telemetry, f"{name}_total") for name in counts} == counts
    at = [value(telemetry, "accepted_at_total", position=str(i)) for i in (1, 2, 3)]
    assert at == [2, 1, 0]
    outcomes = ("accepted", "rejected", "undrafted", "off")
    assert [value(telemetry, "decode_steps_total", outcome=o) for o in outcomes] == [2, 1, 1, None]
    assert value(telemetry, "acceptance_length") == 1 + 3 / 3
    assert value(telemetry, "fallback_ratio", reason="rejected") == 1 / 4
    assert value(telemetry, "fallback_ratio", reason="undrafted") == 1 / 4
    assert value(telemetry, "conditional_acceptance", position="2") == 1 / 2
    assert value(telemetry, "request_acceptance_length_count") == 1
    assert value(telemetry, "inter_step_seconds_count") == 4
    assert value(telemetry, "time_to_first_token_seconds_count") == 1
    assert value(telemetry, "time_per_output_token_seconds_count") == 1
    assert value(telemetry, "requests_total", api="chat", outcome="completed") == 1
    assert value(telemetry, "requests_running") == 0


async def test_without_speculation_acceptance_is_absent(telemetry):
    off = DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)
    script = [
        Step((1,)),
        Step((2,), decode=(off,)),
        Step((3,), decode=(off,), finish=FinishReason.STOP),
    ]
    await answer(telemetry, script)
    assert value(telemetry, "acceptance_length") is None
    assert value(telemetry, "accepted_tokens_total") is None
    assert value(telemetry, "request_acceptance_length_count") is None
    assert value(telemetry, "fallback_ratio", reason="off") == 1.0


async def test_a_running_request_shows_when_somebody_reads(telemetry):
    script = steps(range(10), cuts=[1, 3, 3, 3])
    observed = InstrumentedEngine(ScriptedEngine(script), telemetry)
    observation = begin(telemetry)
    request = EngineRequest("r-0", (1,), Sampling(max_tokens=100))
    async with aclosing(read_steps(observed.generate, request)) as stream:
        for _ in range(3):
            await anext(stream)
            observation.choice("r-0")(TEXT)
        assert value(telemetry, "requests_running") == 1
        assert value(telemetry, "verify_steps_total") == 1  # the newest step waits for the next
    observation.end(Ending.CLIENT_GONE)
    observation.end(Ending.COMPLETED)
    assert value(telemetry, "verify_steps_total") == 2
    assert value(telemetry, "streams_interrupted_total", reason="client_gone") == 1
    assert value(telemetry, "requests_total", api="chat", outcome="client_gone") == 1
    assert value(telemetry, "requests_total", api="chat", outcome="completed") is None


async def test_choices_of_one_request_are_counted_apart(telemetry):
    observation = begin(telemetry, "a", "b")

    async def run(id: str) -> None:
        choice, script = observation.choice(id), steps(range(7), cuts=[1, 3, 3])
        await generate(telemetry, choice, script, [ToolCallStart(0, "c", "f")], id=id)
        choice(ToolCallEnd(0, Outcome.MALFORMED))
        choice(Finish("tool_calls", Usage(prompt=1, completion=7)))

    await asyncio.gather(run("a"), run("b"))
    observation.end(Ending.COMPLETED)
    assert value(telemetry, "completion_tokens_total") == 14
    assert value(telemetry, "time_per_output_token_seconds_count") == 2
    assert value(telemetry, "tool_calls_total", outcome="malformed") == 2
    assert value(telemetry, "requests_total", api="chat", outcome="completed") == 1
    by_phase = {"model": "m", "lane": "default", "phase": "tool_call"}
    assert read(telemetry, "phase_accepted_tokens_total", **by_phase) == 8


async def test_requests_without_an_observation_are_counted_by_their_own_labels(telemetry):
    observed = InstrumentedEngine(ScriptedEngine(steps(range(5), cuts=[1, 4])), telemetry)
    await observed.start()
    request = EngineRequest("warm-up", (1,), Sampling(max_tokens=100))
    assert [len(step.token_ids) async for step in read_steps(observed.generate, request)] == [1, 4]
    telemetry.settle()
    assert read(telemetry, "accepted_tokens_total", **LABELS | {"model": "other"}) == 3
    assert read(telemetry, "engine_up", engine="default") == 1


@pytest.mark.parametrize(("lossy", "value"), [((), 0), (("synthetic",), 1), (None, None)])
def test_lossy_speculation_is_a_metric_and_told(telemetry, lossy, value):
    speculation = SpeculationInfo("eagle3", 3, lossy=lossy)
    info = replace(DEFAULT_INFO, speculation=speculation)
    telemetry.facts.publish(EngineStarted("default", info, 1.0))
    assert read(telemetry, "engine_lossy", engine="default") == value
    told = summarize_speculation(telemetry)["engines"]["default"]["lossy"]
    assert told == lossy


async def test_unclaimed_steps_come_from_the_engine(telemetry):
    class Counting(ScriptedEngine, SupportsUnclaimed):
        unclaimed = Totals(verify_steps=2, proposed=6, accepted=3, cut=1)

    InstrumentedEngine(Counting(), telemetry)
    names = ("verify_steps", "drafted_tokens", "accepted_tokens")
    told = [read(telemetry, f"unclaimed_{name}_total", engine="default") for name in names]
    assert told == [2, 6, 4]


async def test_the_queue_is_read_from_admission_itself(telemetry):
    assert read(telemetry, "queue_requests") is None
    admission = Admission(AdmissionLimits(running=4, queued=9, queued_tokens=100))
    admission.queued, admission.running = 3, 2
    telemetry.scope.admission = lambda: admission
    assert read(telemetry, "queue_requests") == 3
    assert read(telemetry, "engine_sequences") == 2
    assert read(telemetry, "admission_limit", bound="queued") == 9


WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"


def read_as_picker(page: bytes, name: str) -> float:
    """Read any one series of the gauge, as the extractor of llm-d's endpoint picker does."""
    families = text_string_to_metric_families(page.decode())
    (family,) = [family for family in families if family.name == name]
    return family.samples[0].value


@pytest.mark.parametrize(("ranks", "waiting", "running"), [(0, 22, 2), (1, 23, 5), (2, 12, 5)])
def test_an_endpoint_picker_sees_the_queue(telemetry, monkeypatch, ranks, waiting, running):
    engines = CollectorRegistry()
    monkeypatch.setattr("eaglegate.observability.pages.REGISTRY", engines)
    for name, value_ in ((WAITING, 1), (RUNNING, 5)) if ranks else ():
        gauge = Gauge(name, "of vLLM", ("engine",), registry=engines)
        for rank in range(ranks):
            gauge.labels(str(rank)).set(value_)
    admission = Admission(AdmissionLimits(running=2))
    admission.queued, admission.running = 22, 2
    page = render_metrics(telemetry.registry, lambda: admission)
    assert (read_as_picker(page, WAITING), read_as_picker(page, RUNNING)) == (waiting, running)


async def test_the_page_holds_ours_and_the_process_wide_ones_once(telemetry):
    await answer(telemetry, steps(range(5), cuts=[1, 4]))
    page = read_page(telemetry)
    types = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert 'eaglegate_acceptance_length{lane="default",model="m",workload="chat"} 4.0' in page
    assert "python_info" in page


def test_the_parts_of_the_start_are_a_metric(telemetry) -> None:
    telemetry.facts.publish(GatewayStarted({"imports": 3.0, "warm-up": 0.5}))
    assert read(telemetry, "start_seconds", part="imports") == 3.0
    assert read(telemetry, "start_seconds", part="warm-up") == 0.5
