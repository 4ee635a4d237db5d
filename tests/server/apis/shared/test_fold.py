"""fold(stream) == the answer that is not streamed, for every API and any cut of any output."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.streams import (
    fold_chat,
    fold_completion,
    fold_message,
    fold_response,
    read_chat,
    read_completion,
    read_frames,
    read_message,
    read_response,
)

pytestmark = pytest.mark.thorough

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
PIECES = [
    "<think>", "</think>", "\n", "hm ", "Let me look.", CALL, CALL[:40], "<tool_call>", "grün ✓ ",
    "<tool", ' {"a": 1} ', "</tool_call>", "\n\n",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
cuts = st.lists(st.integers(1, 6), max_size=20)
limits = st.sampled_from([None, 1, 7, 100])
stops = st.sampled_from([None, ["look"], ["</tool_call>"], ["\n\n", "hm"]])


USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": FUNCTION}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
APIS = {
    "chat": (
        "/v1/chat/completions",
        {"messages": USER, "tools": [TOOL]},
        USAGE,
        fold_chat,
        read_chat,
    ),
    "completions": ("/v1/completions", {"prompt": "hi"}, USAGE, fold_completion, read_completion),
    "responses": (
        "/v1/responses",
        {"input": "hi", "tools": [FUNCTION | {"type": "function"}], "store": False},
        {"stream": True},
        fold_response,
        read_response,
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": USER,
            "max_tokens": 200,
            "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        },
        {"stream": True},
        fold_message,
        read_message,
    ),
}
LIMITS = {"responses": "max_output_tokens"}
STOPS = {"chat": "stop", "completions": "stop", "messages": "stop_sequences"}


@pytest.mark.parametrize("api", APIS)
@settings(
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=texts, cut=cuts, limit=limits, stop=stops)
def test_the_stream_folds_to_the_answer(lab, api, text, cut, limit, stop):
    url, fields, streaming, fold, read = APIS[api]
    asked = {"model": "demo", **fields}
    if limit is not None:
        asked[LIMITS.get(api, "max_tokens")] = limit
    if stop is not None and api in STOPS:
        asked[STOPS[api]] = stop
    lab.says(text, cut)

    async def both() -> tuple[Any, Any]:
        return await lab.post(url, asked), await lab.post(url, asked | streaming)

    answer, stream = asyncio.run(both())
    assert answer.status == stream.status == 200
    assert fold(read_frames(stream.body)) == read(answer.json)
