"""openai-agents against the demo model on a real port."""

from __future__ import annotations

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "streamed"), [(OpenAIChatCompletionsModel, True), (OpenAIResponsesModel, False)]
)
async def test_an_agent_uses_its_tool(demo_gateway, kind, streamed):
    set_tracing_disabled(True)
    asked = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the weather."""
        asked.append(city)
        return "rain"

    client = AsyncOpenAI(base_url=f"{demo_gateway.url}/v1", api_key="none", max_retries=0)
    agent = Agent(
        "weather",
        model=kind("demo", client),
        tools=[get_weather],
        model_settings=ModelSettings(temperature=0, max_tokens=120),
    )
    question = "What is the weather in Oslo?"
    if streamed:
        result = Runner.run_streamed(agent, question, max_turns=4)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, question, max_turns=4)
    assert asked
    assert asked[0] == "Oslo"
    assert isinstance(result.final_output, str)
