"""Pydantic AI: a tool loop, streamed and whole, and a typed result. Driven by test_python_sdks.py.

python pydantic_ai_loop.py chat|responses|messages URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Report(BaseModel):
    city: str
    degrees: int


def make_model(api: str, url: str) -> Model:
    if api == "messages":
        client = AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        return AnthropicModel("demo", provider=AnthropicProvider(anthropic_client=client))
    provider = OpenAIProvider(
        openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    )
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind("demo", provider=provider)


async def main(api: str, url: str) -> dict[str, Any]:
    model = make_model(api, url)
    agent = Agent(model)
    asked: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "rain"

    first = await agent.run("play:weather Weather?")
    async with agent.run_stream("play:weather Weather?") as streamed:
        text = "".join([piece async for piece in streamed.stream_text(delta=True)])
    second = await agent.run("play:thanks Thanks.", message_history=first.all_messages())
    typed = await Agent(model, output_type=Report).run("play:report A report.")
    return {
        "whole": first.output,
        "streamed": text,
        "cities": asked,
        "second": second.output,
        "typed": typed.output.model_dump(),
    }


print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
