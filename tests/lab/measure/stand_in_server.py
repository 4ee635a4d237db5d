"""An OpenAI-compatible server whose answers, times and counters a test knows in advance."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class StandInServer:
    """Answers every request with ``steps`` of tokens; the first step is one token of prefill."""

    steps: tuple[int, ...] = (1, 4, 2, 1)
    depth: int = 3
    wait_s: float = 0.0
    step_s: float = 0.0
    owner: str = "eaglegate"
    reports: bool = True
    fails: int = 0
    """The first so many requests are refused with 503."""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    captures: list[str] = field(default_factory=list)
    """The capture header of each request."""
    served: int = 0
    text: str = ""
    """Answer instead of words that count up."""
    call: tuple[str, str] | None = None
    """A tool call of this name and arguments instead of content."""
    obeys: bool = False
    """Drafts as deep as a request says, at a quarter of a step a draft; three of them are right."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/metrics", self.metrics),
                Route("/ready", self.ready),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.chat, methods=["POST"]),
            ]
        )

    def draft(self, body: dict[str, Any]) -> tuple[tuple[int, ...], int]:
        """Tokens of each step, and how deep they were drafted."""
        depth = body.get("num_speculative_tokens")
        if not self.obeys or depth is None:
            return self.steps, self.depth
        left, sizes = sum(self.steps) - 1, [1]
        while left > 0:
            sizes.append(min(left, min(depth, 3) + 1))
            left -= sizes[-1]
        return tuple(sizes), depth

    async def ready(self, _: Request) -> Response:
        return JSONResponse({"status": "ready", "engine": {"num_speculative_tokens": self.depth}})

    @property
    def verified(self) -> list[tuple[int, int]]:
        """Drafted and accepted of every verify step."""
        return [(self.depth, size - 1) for size in self.steps[1:]]

    async def models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "stand-in", "owned_by": self.owner}]})

    async def metrics(self, _: Request) -> Response:
        steps, n = self.verified, self.served
        lines = [
            f'eaglegate_verify_steps_total{{lane="a"}} {len(steps) * n}',
            f'eaglegate_drafted_tokens_total{{lane="a"}} {sum(d for d, _ in steps) * n}',
            f'eaglegate_accepted_tokens_total{{lane="a"}} {sum(a for _, a in steps) * n}',
            f'eaglegate_completion_tokens_total{{lane="a"}} {sum(self.steps) * n}',
        ]
        rejected = sum(not a for _, a in steps) * n
        lines.append(f'eaglegate_decode_steps_total{{outcome="rejected"}} {rejected}')
        for at in range(self.depth):
            took = sum(a > at for _, a in steps) * n
            lines.append(f'eaglegate_accepted_at_total{{position="{at + 1}"}} {took}')
            lines.append(f'eaglegate_drafted_at_total{{position="{at + 1}"}} {len(steps) * n}')
        return PlainTextResponse("\n".join(lines) + "\n")

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.captures.append(request.headers.get("x-eaglegate-capture", "on"))
        if self.fails:
            self.fails -= 1
            return JSONResponse({"error": {"message": "no room"}}, 503)
        return StreamingResponse(self.play(body), media_type="text/event-stream")

    async def play(self, body: dict[str, Any]):
        await asyncio.sleep(self.wait_s)
        chat = "messages" in body
        if chat:
            yield frame(choice({"role": "assistant", "content": ""}))
        at = 0
        steps, depth = self.draft(body)
        for number, size in enumerate(steps):
            if number:
                await asyncio.sleep(self.step_s * (1 + depth / 4 * self.obeys))
            ids = list(range(at, at + size)) if body.get("return_token_ids") else None
            delta = self.delta(at, size)
            yield frame(choice(delta, token_ids=ids) if chat else completion(delta["content"]))
            at += size
        yield frame(choice({}, finish="stop") if chat else completion("", "stop"))
        yield frame(self.ending(body))
        self.served += 1
        yield b"data: [DONE]\n\n"

    def delta(self, at: int, size: int) -> dict[str, Any]:
        if self.call:
            name, arguments = self.call
            function = {"name": name, "arguments": arguments} if at == 0 else {"arguments": ""}
            return {"tool_calls": [{"index": 0, "id": "c", "function": function}]}
        if self.text:
            return {"content": self.text[at : at + size]}
        return {"content": "".join(f"w{word} " for word in range(at, at + size))}

    def ending(self, body: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if "messages" in body else "text_completion"
        last: dict[str, Any] = {"object": kind, "choices": []}
        if body.get("stream_options", {}).get("include_usage"):
            last["usage"] = {"prompt_tokens": 7, "completion_tokens": sum(self.steps)}
        if self.reports and body.get("per_request_spec_decode_metrics"):
            steps, depth = self.draft(body)
            account = {
                "per_step_drafted": [depth for _ in steps[1:] if depth],
                "per_step_accepted": [size - 1 for size in steps[1:] if depth],
            }
            last["metrics"] = {"speculative_decoding": account}
        return last


def choice(
    delta: dict[str, Any], finish: str | None = None, token_ids: list[int] | None = None
) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "token_ids": token_ids}],
    }


def completion(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return {"object": "text_completion", "choices": [choice]}


def frame(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
