"""The counters equal the engine's account, whatever the steps, the stops and the choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.speculation.accounts.accounting import intern_step
from eaglegate.engine.types import EngineRequest, Step, UndraftedReason
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.middleware import TelemetryMiddleware
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import FinishReason
from tests.observability.scene import make_telemetry
from tests.server.conftest import Lab

WORDS = "The river runs past the old mill and out to sea while gulls call over it. "


class Script:
    """Steps of any size and outcome, merged at times, and read metrics in the middle."""

    def __init__(self, ids: list[int], dice: random.Random, read: Callable[[], None]) -> None:
        self.ids, self.dice, self.read = ids, dice, read

    def __call__(self, request: EngineRequest) -> Iterator[Step]:
        for step in self._steps():
            if self.dice.random() < 0.1:
                self.read()
            yield step

    def _steps(self) -> list[Step]:
        depth = self.dice.randrange(8)
        out, at = [Step((self.ids[0],))], 1
        while at < len(self.ids):
            size = min(self.dice.randrange(depth + 1) + 1, len(self.ids) - at)
            at += size
            ends = FinishReason.LENGTH if at >= len(self.ids) else None
            out.append(self._step(tuple(self.ids[at - size : at]), depth, ends))
        return self._merged(out)

    def _step(self, piece: tuple[int, ...], depth: int, ends: FinishReason | None) -> Step:
        if depth == 0 or (len(piece) == 1 and self.dice.random() < 0.2):
            reason = UndraftedReason.OFF if depth == 0 else UndraftedReason.REFUSED
            return Step(piece, (intern_step(0, 0, len(piece), 0, reason),), finish=ends)
        return Step(piece, (intern_step(depth, len(piece) - 1, len(piece)),), finish=ends)

    def _merged(self, steps: list[Step]) -> list[Step]:
        """Some steps merged, as engines do when the consumer lags."""
        out: list[Step] = []
        for step in steps:
            if out and self.dice.random() < 0.3:
                last = out.pop()
                step = Step(last.token_ids + step.token_ids, last.decode + step.decode)
            out.append(step)
        return [*out[:-1], Step(out[-1].token_ids, out[-1].decode, finish=FinishReason.LENGTH)]


def counted(telemetry: Telemetry) -> dict[str, float]:
    telemetry.settle()
    sums: dict[str, float] = {}
    for family in telemetry.registry.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
async def test_counters_are_the_sum_of_what_was_delivered(seed):
    dice = random.Random(seed)
    telemetry = make_telemetry(models=("demo", "alias"))
    lab = Lab()
    ids = lab.renderer.encode(WORDS * 3, False)
    engine = ScriptedEngine(Script(ids, dice, telemetry.settle))
    lab.engine = InstrumentedEngine(engine, telemetry)
    lab.gateway.observer = telemetry
    lab.gateway.open(lab.path())
    lab.app = TelemetryMiddleware(lab.app, log=lambda _: None)
    usages = []
    for _ in range(30):
        fields = {
            "max_tokens": dice.choice([1, 2, 7, 30, 200]),
            "n": dice.choice([1, 1, 3]),
            **dice.choice([{}, {}, {"stop": ["gulls"]}, {"stop": ["ve", "mill"]}]),
        }
        answer = await lab.chat(**fields)
        assert answer.status == 200
        usages.append(answer.json["usage"])
    sums = counted(telemetry)
    told = sum(usage["completion_tokens"] for usage in usages)
    accepted = sum(
        usage.get("completion_tokens_details", {}).get("accepted_prediction_tokens") or 0
        for usage in usages
    )
    assert sums["eaglegate_completion_tokens_total"] == told
    assert sums["eaglegate_accepted_tokens_total"] == accepted
    assert told == (
        sums["eaglegate_first_tokens_total"]
        + sums["eaglegate_accepted_tokens_total"]
        + sums["eaglegate_decode_steps_total"]
        - sums["eaglegate_lost_bonus_tokens_total"]
    )
    by_phase = sums["eaglegate_phase_decode_steps_total"]
    by_context = sums["eaglegate_context_decode_steps_total"]
    by_template = sums["eaglegate_template_decode_steps_total"]
    assert by_phase == by_context == by_template == sums["eaglegate_decode_steps_total"]
