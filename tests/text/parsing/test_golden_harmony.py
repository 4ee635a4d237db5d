"""The harmony cases against the library that defines the format."""

from __future__ import annotations

from functools import cache

import pytest

from tests.text.parsing.golden_corpus import Case, Marker, corpus

harmony = pytest.importorskip("openai_harmony")

NOT_THE_LIBRARY_S = {
    *("length_after_complete_json", "trailing_comma", "end_in_string"),
    *("raw_newline_in_string", "missing_brace_of_arguments"),
    # It refuses these.
    *("vllm_35906b", "vllm_35906c", "vllm_35906d", "harmony_60", "harmony_60b", "lmstudio_942"),
    *("harmony_start_twice", "harmony_text_between_messages", "harmony_no_message"),
    *("harmony_answer_without_header", "harmony_words_between_messages"),
    *("harmony_empty_channel", "harmony_words_in_constrain"),
    # It does not say which message is a call, or parts of one answer.
    *("harmony_final_json", "harmony_header_of_noise", "harmony_channel_and_number"),
    *("harmony_channel_twice", "to_assistant", "preamble_and_answer"),
}
"""Cases whose reading is ours to choose: damaged ones, which are repaired here."""


@cache
def encoding():
    try:
        return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    except harmony.HarmonyError as error:
        pytest.skip(f"the encoding cannot be had: {error}")


def ids(case: Case) -> list[int]:
    found: list[int] = []
    for piece in case.pieces:
        if isinstance(piece, Marker):
            found += encoding().encode(piece.token, allowed_special="all")
        else:
            found += encoding().encode(piece, disallowed_special=())
    return found


def messages(case: Case):
    parser = harmony.StreamableParser(encoding(), harmony.Role.ASSISTANT)
    for token_id in ids(case):
        parser.process(token_id)
    parser.process_eos()
    return parser.messages


CASES = [
    pytest.param(case, id=case.id)
    for case in corpus()
    if "openai" in case.format.name
    and case.pieces
    and case.finish == "stop"
    and case.name not in NOT_THE_LIBRARY_S
]


@pytest.mark.parametrize("case", CASES)
def test_the_library_reads_the_same(case: Case) -> None:
    reasoning, content, calls = "", "", []
    for message in messages(case):
        text = "".join(part.text for part in message.content)
        recipient = message.recipient
        if recipient and not recipient.startswith("<|constrain|>"):
            calls.append((recipient.removeprefix("functions."), text))
        elif message.channel == "analysis":
            reasoning += text
        else:
            content += text
    assert (reasoning, content) == (case.reasoning, case.content)
    assert calls == [
        (call.name, "" if text == "" else call.arguments)
        for call, (_, text) in zip(case.calls, calls, strict=True)
    ]
