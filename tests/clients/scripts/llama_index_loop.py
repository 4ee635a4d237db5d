"""LlamaIndex with OpenAILike: chat, completion, a tool agent, a typed result.

python llama_index_loop.py URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Report(BaseModel):
    """A report."""

    city: str
    degrees: int


def weather(city: str) -> str:
    """Weather of a city."""
    return "rain"


async def main(url: str) -> dict[str, Any]:
    fixed = {"model": "demo", "api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
    llm = OpenAILike(**fixed, is_chat_model=True, is_function_calling_model=True)
    asked = [ChatMessage(role="user", content="play:thanks Thanks.")]
    agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="be brief")
    report = llm.structured_predict(Report, PromptTemplate("play:report A report."))
    return {
        "whole": llm.chat(asked).message.content,
        "streamed": list(llm.stream_chat(asked))[-1].message.content,
        "agent": str(await agent.run("play:weather Weather?")),
        "typed": report.model_dump(),
        "completion": OpenAILike(**fixed, is_chat_model=False).complete("one").text,
    }


print(json.dumps(asyncio.run(main(sys.argv[1]))))
