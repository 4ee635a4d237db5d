"""The clients people use, against the scripted engine: what a tiny model could not be asked for.

The same clients meet the demo model in tests/e2e.
"""

from __future__ import annotations

import pytest
from openai import APIError, OpenAI, RateLimitError, pydantic_function_tool
from pydantic import BaseModel

from eaglegate.engine.errors import EngineDead, EngineOverloaded

pytestmark = pytest.mark.thorough

CALL = '<tool_call>\n{"name": "%s", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"


class Weather(BaseModel):
    """Weather of a city."""

    city: str


class Report(BaseModel):
    city: str
    degrees: int


@pytest.fixture
def client(url) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(text: str = "weather?") -> dict:
    return {"model": "demo", "messages": [{"role": "user", "content": text}]}


def test_parse_makes_models_of_content_and_calls(lab, client):
    lab.says('{"city": "Oslo", "degrees": 12}', [1, 3])
    answer = client.chat.completions.parse(**ask(), response_format=Report)
    assert answer.choices[0].message.parsed == Report(city="Oslo", degrees=12)
    assert lab.engine.requests[-1].constraint is not None
    lab.says(CALL % "Weather", [1, 3])
    tools = [pydantic_function_tool(Weather)]
    (call,) = client.chat.completions.parse(**ask(), tools=tools).choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Oslo")
    lab.says('{"city": "Oslo", "degrees": 12}', [1, 3])
    answer = client.responses.parse(model="demo", input="weather?", text_format=Report)
    assert answer.output_parsed == Report(city="Oslo", degrees=12)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (50,), ()])
def test_the_streaming_helpers_follow(lab, client, cuts):
    lab.says(f"{THOUGHT}Let me look.\n{CALL % 'Weather'}", cuts)
    tools = [pydantic_function_tool(Weather)]
    with client.chat.completions.stream(**ask(), tools=tools) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
    message = final.choices[0].message
    assert message.content == "Let me look."
    assert message.tool_calls[0].function.parsed_arguments == Weather(city="Oslo")
    lab.says('{"city": "Oslo", "degrees": 12}', cuts)
    with client.chat.completions.stream(**ask(), response_format=Report) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.parsed.degrees == 12


def test_errors_reach_the_client_as_its_own(lab, client):
    lab.engine.script = [EngineOverloaded("full")]
    with pytest.raises(RateLimitError) as raised:
        client.chat.completions.create(**ask())
    assert int(raised.value.response.headers["retry-after"]) >= 1
    lab.says("one two three", [1, 1])
    lab.engine.script = [*lab.engine.script[:2], EngineDead("gone")]
    with pytest.raises(APIError, match="engine stopped"):
        list(client.chat.completions.create(**ask(), stream=True))
    events = list(client.responses.create(model="demo", input="x", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
