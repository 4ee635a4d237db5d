"""Series stay few whatever clients send (a label value is memory here and in Prometheus)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.events import Ending, Finish, Usage
from eaglegate.engine.types import DecodeStep, Step
from eaglegate.observability.labels import CONTEXTS, TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.pages import summarize_speculation
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.cli.feature_table import list_metric_groups
from eaglegate.text.events import (
    ContentDelta,
    FinishReason,
    Outcome,
    Phase,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)
from tests.observability.scene import begin

SETTINGS = TelemetrySettings(models=("m",), workloads=("chat", "tools", "batch"), templates=5)
MODELS, LANES, WORKLOADS = (
    len(names) + 1 for names in (SETTINGS.models, SETTINGS.lanes, SETTINGS.workloads)
)
PER_LABEL_SET = 240
PER_SLICE = 6
IMAGES_ALONE = 1
"""Prompts without images have no series by input."""
SLICES = len(CONTEXTS) + len(Phase) + SETTINGS.templates + 2 + IMAGES_ALONE
KEYS = ("chat", "nightly")
PER_KEY = PER_SLICE + 2
REFUSALS = 5 * 41
WINDOWS = 1 + MODELS * LANES * WORKLOADS + LANES + WORKLOADS + SLICES + len(KEYS) + 1
PER_LANE = WORKLOADS * PER_LABEL_SET + SLICES * PER_SLICE + (len(KEYS) + 1) * PER_KEY
BOUND = MODELS * LANES * PER_LANE + REFUSALS
"""Every label at its configured values and ``other``: no request can add to it."""


def hostile(telemetry: Telemetry, random: Random, at: int) -> None:
    """One request whose every client-made value is new."""
    noise = f'{random.getrandbits(64):x}\n"{{}}'
    observation = begin(
        telemetry,
        noise,
        id=noise,
        api=random.choice(["chat", "completions", noise]),
        model=random.choice(["m", noise]),
        lane=random.choice(["default", noise]),
        workload=random.choice(["chat", "batch", noise]),
        template=noise,
        prompt_tokens=random.randrange(1_000_000),
        key=random.choice([*KEYS, noise, None]),
        images=random.choice([0, 1, 1000]),
    )
    sequence = observation.sequences[noise]
    depth = random.randrange(1, 40)
    sequence.add_step(Step((1,)))
    for event in (ReasoningDelta("a"), ContentDelta("b"), ToolCallStart(0, noise, noise)):
        accepted = random.randrange(depth)
        sequence.add_step(Step((1,) * (accepted + 1), (DecodeStep(depth, accepted, accepted + 1),)))
        observation.choice(noise)(event)
        if not at % 7:
            telemetry.settle()
    observation.choice(noise)(ToolCallEnd(0, random.choice(list(Outcome))))
    sequence.add_step(Step((), finish=FinishReason.STOP))
    observation.choice(noise)(Finish(noise, Usage(prompt=1, completion=sequence.tokens)))
    observation.end(random.choice(list(Ending)))
    telemetry.record_refusal(random.choice(["chat", noise]), random.choice(["overloaded", noise]))


@pytest.mark.thorough
def test_series_are_bounded_under_hostile_input():
    telemetry = Telemetry((*GROUPS, *list_metric_groups()), SETTINGS, CollectorRegistry())
    telemetry.name_keys(KEYS)
    random = Random(7)
    counts = []
    sizes = []
    for at in range(3000):
        hostile(telemetry, random, at)
        if at in (1499, 2999):
            counts.append(series(telemetry))
            sizes.append(len(telemetry.book._slices) + len(telemetry.book._labels))
    assert counts[1].total() <= BOUND, counts[1].most_common(5)
    assert counts[1].total() <= counts[0].total() * 1.03, "still growing"
    assert max(sizes) <= WINDOWS
    rows = summarize_speculation(telemetry)["slices"]
    assert max(len(rows[kind]) for kind in rows) <= SETTINGS.templates + 2
    assert not telemetry._live
    assert not telemetry._sequences


def series(telemetry: Telemetry) -> Counter[str]:
    return Counter(
        family.name
        for family in telemetry.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    )
