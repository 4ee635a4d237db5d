"""Greedy streams of every kind, and what a client made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 60, "maxLength": 400},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 8},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
STRUCTURED = {
    "type": "json_schema",
    "json_schema": {"name": "thing", "schema": SCHEMA},
}


def request(kind: str, number: int, tokens: int) -> dict[str, Any]:
    """A greedy request that takes about ``tokens`` tokens."""
    base: dict[str, Any] = {
        "model": "demo",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": f"Tell me a story about {number} lions."}],
    }
    match kind:
        case "tools":
            city = ("Oslo", "Lima", "Rome", "Cairo")[number % 4]
            question = {"role": "user", "content": f"What is the weather in {city}?"}
            return base | {"tools": [WEATHER], "messages": [question], "ignore_eos": True}
        case "structured":
            return base | {"response_format": STRUCTURED}
        case "penalised":
            return base | {"frequency_penalty": 0.3, "ignore_eos": True}
        case "long":
            words = {"role": "user", "content": f"{number} lions. " + "Tell me a story. " * 550}
            return base | {"messages": [words], "ignore_eos": True}
        case "logprobs":
            return base | {"logprobs": True, "top_logprobs": 2, "ignore_eos": True}
        case "reasoning":
            return base | {"reasoning_effort": "high", "ignore_eos": True}
    return base | {"ignore_eos": True}


KINDS = ("chat", "tools", "structured", "reasoning", "chat", "penalised", "logprobs", "chat")


def requests(number: int, tokens: int) -> list[dict[str, Any]]:
    return [request(KINDS[at % len(KINDS)], at, tokens) for at in range(number)]


@dataclass
class Heard:
    """One stream as its client heard it."""

    status: int = 0
    content: str = ""
    reasoning: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    logprobs: int = 0
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: Any = None
    done: bool = False

    def add(self, chunk: dict[str, Any]) -> None:
        self.error = chunk.get("error") or self.error
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ()):
            delta = choice["delta"]
            self.content += delta.get("content") or ""
            self.reasoning += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                parts = self.calls.setdefault(call["index"], [])
                function = call["function"]
                parts.append((function.get("name") or "") + (function.get("arguments") or ""))
            self.logprobs += len((choice.get("logprobs") or {}).get("content") or ())
            self.finish = choice.get("finish_reason") or self.finish

    @property
    def said(self) -> tuple[Any, ...]:
        """The parts of an answer that must not depend on faults."""
        calls = tuple("".join(parts) for _, parts in sorted(self.calls.items()))
        tokens = self.usage.get("completion_tokens")
        return (self.content, self.reasoning, calls, self.logprobs, self.finish, tokens)

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.done and self.error is None and self.finish is not None


async def hear(
    client: httpx.AsyncClient, body: dict[str, Any], began: asyncio.Event | None = None
) -> Heard:
    heard = Heard()
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        heard.status = answer.status_code
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                heard.done = True
            elif line.startswith("data: "):
                heard.add(orjson.loads(line[6:]))
                if began is not None:
                    began.set()
            elif heard.status != 200 and line:
                heard.error = orjson.loads(line)["error"]
    return heard


async def hear_all(
    url: str, bodies: Sequence[dict[str, Any]], began: asyncio.Event | None = None
) -> list[Heard]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        return list(await asyncio.gather(*(hear(client, body, began) for body in bodies)))
