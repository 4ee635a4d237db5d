import pytest
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

from eaglegate.engine.types import DecodeStep, Drafter, EngineInfo, SpeculationInfo, UndraftedReason
from eaglegate.engine.vllm_backend.translate import (
    choose_reader,
    read_decode_step,
    read_nothing,
    read_plain_step,
)
from eaglegate.engine.vllm_fields import mark_other_drafter


def output(tokens: int, drafted: int = 0, reached: int = 0, depth: int = 3) -> EngineCoreOutput:
    account = RequestSpecDecodeMetrics(depth, [reached], num_draft_tokens=drafted)
    return EngineCoreOutput("a", [5] * tokens, spec_decode_metrics=account)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (output(3, drafted=3, reached=2), DecodeStep(3, 2, 3)),
        (output(2, drafted=3, reached=3), DecodeStep(3, 2, 2, cut=1)),
        (output(1, drafted=2, reached=0), DecodeStep(2, 0, 1)),
        (output(1), DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED)),
        (output(1, depth=0), DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)),
        (output(0), None),
    ],
)
def test_outputs_become_decode_steps(given: EngineCoreOutput, want: DecodeStep | None) -> None:
    assert read_decode_step(given, is_first=False) == want


def test_a_lookup_is_named_in_the_decode_step() -> None:
    lookup = output(6, drafted=8, reached=5, depth=mark_other_drafter(3))
    step = DecodeStep(8, 5, 6, drafter=Drafter.LOOKUP)
    assert read_decode_step(lookup, is_first=False) == step


def test_the_first_token_is_no_decode_step_unless_drafts_were_verified() -> None:
    assert read_decode_step(output(1), is_first=True) is None
    assert read_decode_step(output(2, drafted=3, reached=1), is_first=True) == DecodeStep(3, 1, 2)


def test_readers() -> None:
    def info(depth: int, reports: bool) -> EngineInfo:
        return EngineInfo("m", 10, 10, SpeculationInfo("x", depth), reports_decode_steps=reports)

    assert choose_reader(info(3, True)) is read_decode_step
    assert choose_reader(info(0, True)) is read_plain_step
    assert choose_reader(info(3, False)) is read_nothing
    assert read_plain_step(output(1), False) == DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF)
    assert read_plain_step(output(1), True) is None
