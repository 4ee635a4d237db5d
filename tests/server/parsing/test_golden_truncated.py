"""An output cut off anywhere says a beginning of what the whole one says, and invents nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.types import FinishReason
from tests.server.parsing.golden_corpus import Case, by_format
from tests.server.parsing.golden_cuts import Cutting, every
from tests.server.parsing.golden_reading import Reading, check_all, fold, main_parser, output, read

TEXTUAL = {
    "deepseek_v32",
    "granite",
    "granite_text",
    "hermes_text",
    "llama3_json",
    "llama4_pythonic",
    "openai",
    "pythonic",
    "reasoning_granite",
}
"""Formats with markers of plain text: half a marker at the end is still text."""
SHORT = 250


def is_checked(case: Case) -> bool:
    return (
        case.size <= SHORT
        and case.finish is FinishReason.STOP
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
            assert all(begins(got.arguments, whole.arguments) for got, whole in pairs), where
        if case.format.name not in TEXTUAL:
            assert begins(reading.reasoning, case.reasoning), where
            assert begins(reading.content, case.content), where


@pytest.mark.parametrize("cases", by_format())
def test_cut_off_anywhere(cases: Sequence[Case]) -> None:
    check_all([case for case in cases if is_checked(case)][::9], check)


@pytest.mark.slow
@pytest.mark.parametrize("cases", by_format())
def test_each_cut_off_anywhere(cases: Sequence[Case]) -> None:
    check_all([case for case in cases if is_checked(case)], check)
