"""An output cut off anywhere says a beginning of what the whole one says, and invents nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from eaglegate.text.events import FinishReason
from tests.text.parsing.golden_corpus import Call, Case, by_format
from tests.text.parsing.golden_cuts import Cutting, every
from tests.text.parsing.golden_reading import Reading, check_all, fold, main_parser, output, read

TEXTUAL = {
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "gigachat3",
    "gigachat35",
    "granite",
    "granite_20b_fc",
    "granite_text",
    "hermes_text",
    "hunyuan_a13b",
    "inkling",
    "lfm2",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "minicpm5",
    "minimax_m3",
    "muse",
    "muse_glimmer",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "plamo3",
    "pythonic",
    "reasoning_granite",
    "xlam",
}
"""Formats with markers or headers of plain text: half of one at the end is still text."""
UNDECIDED = {
    *("function_without_call_tag", "section_in_thinking_then_more_thinking"),
    *("bare_after_text", "bare_after_thought", "open_fence", "open_fence_two"),
    *("fenced_answer", "fenced_answer_two", "fenced_answer_then_call"),
    *("fenced_answer_after_thought", "fenced_answer_left_open"),
    *("fenced_json_in_tags", "bare_fence_in_tags"),
}
"""Cases of other formats where a marker is text until what follows decides."""
SHORT = 250


def is_checked(case: Case) -> bool:
    return (
        case.size <= SHORT
        and case.finish is FinishReason.STOP
        and case.defined
        and not case.name.startswith("end_of_thinking_forgotten")  # cut off, it is all thinking
    )


def cut_off(case: Case, size: int) -> Reading:
    case = replace(case, finish=FinishReason.LENGTH)
    ids, _, _ = output(case)
    cutting = Cutting(f"the first {size} tokens", every(ids[:size], 4))
    return fold(*read(case, cutting, main_parser(case)))


def begins(text: str, whole: str) -> bool:
    """Line breaks at the end may be framing that nothing followed."""
    return whole.startswith(text.rstrip("\n "))


def begins_as_written(got: Call, whole: Call, case: Case) -> bool:
    """A repaired call that is cut off may end in what the model wrote, such as a last comma."""
    written = "".join(map(str, case.pieces))
    is_repaired = whole.arguments not in written
    return begins(got.arguments, whole.arguments) or (is_repaired and got.arguments in written)


def check(case: Case) -> None:
    ids, _, _ = output(case)
    for size in range(len(ids)):
        reading = cut_off(case, size)
        where = f"{case.id} after {size} tokens: {reading}"
        assert reading.finish_reason == "length", where
        assert [call.name for call in reading.calls] == [
            call.name for call in case.calls[: len(reading.calls)]
        ], where
        if case.format.arguments == "verbatim":
            pairs = zip(reading.calls, case.calls, strict=False)
            assert all(begins_as_written(got, whole, case) for got, whole in pairs), where
        if case.format.name not in TEXTUAL and case.name not in UNDECIDED:
            assert begins(reading.reasoning, case.reasoning), where
            assert begins(reading.content, case.content), where


@pytest.mark.slow
@pytest.mark.parametrize("cases", by_format())
def test_each_cut_off_anywhere(cases: Sequence[Case]) -> None:
    check_all([case for case in cases if is_checked(case)], check)
