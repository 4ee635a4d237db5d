"""Reader of one streamed answer of an OpenAI-compatible API, with the times of its chunks.

It reads chat completions, completions, Responses and Anthropic's messages. TTFT is the first chunk
with output: content, reasoning or a part of a tool call. A chunk with only a role is not output.
The answer ends with the last chunk that belongs to a choice, including its finish reason, as in
`vllm bench serve`. The chunk with the usage does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

import orjson

BUNCHED_S = 0.0005
"""Time between two chunks that is shorter than any server's."""
PARTS = {
    "response.output_text.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
"""Events of the Responses API that carry output, and the part of the answer they extend."""
CALLS = ("_call", "tool_use")
"""Ends of the types of items and blocks that call a tool."""
ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(slots=True)
class ToolCall:
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class RequestResult:
    """Result of one request. Times are in seconds; ``started`` counts from the start of its run."""

    id: str
    session: str
    category: str = ""
    started: float = 0.0
    ttft: float | None = None
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Times between chunks with output, which vLLM calls ITL."""
    output_tokens: int = 0
    prompt_tokens: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """Log probabilities per token in the form of chat completions, with alternatives if asked for.
    """
    drafted: list[int] = field(default_factory=list)
    """Draft tokens of every verify step, if the server reports them."""
    accepted: list[int] = field(default_factory=list)
    reports_steps: bool = False
    """True if the server reported its steps, even if there were none."""
    status: int = 0
    error: str | None = None
    left: bool = False
    """True if the client closed the connection early, on purpose."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def tpot(self) -> float | None:
        """(End - first token) / (N - 1); None for N < 2."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the end; 0 for an answer of one token."""
        return self.latency - self.ttft if self.tpot is not None and self.ttft is not None else 0.0

    @property
    def is_bunched(self) -> bool:
        """True if most chunks came at the same moment as the one before.

        A stall of the client or the network then delivered them together, and the time between them
        is not the server's.
        """
        return len(self.gaps) > 1 and median(self.gaps) < BUNCHED_S

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens after the first per decode step, counting verify steps and plain steps."""
        if self.output_tokens < 2 or not self.accepted:
            return None
        steps = self.output_tokens - 1 - sum(self.accepted)
        return (self.output_tokens - 1) / steps if steps > 0 else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RequestResult:
        names = {item.name for item in fields(cls)}
        result = cls(**{name: value for name, value in row.items() if name in names})
        result.tool_calls = [ToolCall(**call) for call in row.get("tool_calls", ())]
        return result


class StreamReader:
    """Reader of server-sent events of any of the four APIs into a ``RequestResult``.

    ``feed`` takes bytes as they arrive, and the time since the request was sent.
    """

    def __init__(self, result: RequestResult) -> None:
        self.result = result
        self._remainder = b""
        self._last_output_s = 0.0

    def feed(self, data: bytes, now: float) -> None:
        *frames, self._remainder = (self._remainder + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for frame in frames:
            for payload in _iter_payloads(frame):
                self._take(payload, now)

    def finish(self) -> None:
        """Take a last frame without its blank line, and note an answer that never came."""
        self.feed(b"\n\n", self._last_output_s)
        if self.result.ttft is None and self.result.error is None:
            self.result.error = "the stream ended without any output"

    def read_error(self, body: bytes, status: int) -> None:
        """Read an answer with a status other than 200."""
        self.result.status = status
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError:
            payload = body[:200].decode("utf-8", "replace")
        self.result.error = f"HTTP {status}: {_error_text(payload)}"

    def _take(self, payload: dict[str, Any], now: float) -> None:
        if payload.get("error"):
            self.result.error = _error_text(payload)
        elif "choices" in payload:
            self._take_chunk(payload, now)
        elif "type" in payload:
            self._take_event(payload, now)

    def _mark(self, now: float, *, output: bool) -> None:
        """Note the time of a choice's chunk; ``output`` is True if it carries any."""
        result = self.result
        if output and result.ttft is None:
            result.ttft = now
        elif output:
            result.gaps.append(now - self._last_output_s)
        if output:
            self._last_output_s = now
        result.latency = now

    def _take_chunk(self, chunk: dict[str, Any], now: float) -> None:
        for choice in chunk["choices"][:1]:
            delta = choice.get("delta") or {}
            output = self._add_delta(delta, choice.get("text"))
            self.result.token_ids += choice.get("token_ids") or ()
            self._add_logprobs(choice.get("logprobs"))
            self.result.finish = choice.get("finish_reason") or self.result.finish
            self._mark(now, output=output)
        self._add_usage(chunk.get("usage"))
        self._add_speculation(chunk.get("metrics"))

    def _add_delta(self, delta: Mapping[str, Any], text: str | None) -> bool:
        content = delta.get("content") or text or ""
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        calls = delta.get("tool_calls") or ()
        self.result.text += content
        self.result.reasoning += reasoning
        for part in calls:
            function = part.get("function") or part.get("custom") or {}
            call = self._call_at(part.get("index", 0))
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or function.get("input") or ""
        return bool(content or reasoning or calls)

    def _call_at(self, index: int) -> ToolCall:
        while len(self.result.tool_calls) <= index:
            self.result.tool_calls.append(ToolCall())
        return self.result.tool_calls[index]

    def _add_logprobs(self, logprobs: Any) -> None:
        if isinstance(logprobs, Mapping) and isinstance(logprobs.get("content"), list):
            self.result.logprobs += logprobs["content"]

    def _take_event(self, event: dict[str, Any], now: float) -> None:
        """Read an event of the Responses API, or one of Anthropic's messages."""
        kind, delta, result = event["type"], event.get("delta"), self.result
        item = event.get("item") or event.get("content_block") or {}
        if kind.endswith((".added", "_start")) and str(item.get("type", "")).endswith(CALLS):
            result.tool_calls.append(ToolCall(item.get("name") or ""))
        if isinstance(delta, Mapping):
            parts = (delta.get(name) or "" for name in ("text", "thinking", "partial_json"))
            self._extend(now, *parts)
            result.finish = delta.get("stop_reason") or result.finish
        elif delta and kind in PARTS:
            self._extend(now, **{PARTS[kind]: delta})
        answer = event.get("response") or event.get("message") or {}
        for source in (event, answer):
            self._add_usage(source.get("usage"))
            self._add_speculation(source.get("metrics"))
        if kind in ENDS:
            result.finish = answer.get("status")
            result.error = _error_text(answer) if result.finish == "failed" else result.error

    def _extend(self, now: float, text: str = "", reasoning: str = "", arguments: str = "") -> None:
        """Add output to the answer; arguments belong to the last call."""
        if not (text or reasoning or arguments):
            return
        self.result.text += text
        self.result.reasoning += reasoning
        if arguments:
            self._call_at(max(0, len(self.result.tool_calls) - 1)).arguments += arguments
        self._mark(now, output=True)

    def _add_usage(self, usage: Mapping[str, Any] | None) -> None:
        if not usage:
            return
        result = self.result
        result.output_tokens = (
            usage.get("completion_tokens") or usage.get("output_tokens") or result.output_tokens
        )
        result.prompt_tokens = (
            usage.get("prompt_tokens") or usage.get("input_tokens") or result.prompt_tokens
        )

    def _add_speculation(self, metrics: Any) -> None:
        account = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
        if account and account.get("per_step_drafted") is not None:
            self.result.reports_steps = True
            self.result.drafted = list(account["per_step_drafted"])
            self.result.accepted = list(account["per_step_accepted"])


def _iter_payloads(frame: bytes) -> Iterator[dict[str, Any]]:
    lines = (line for line in frame.split(b"\n") if line.startswith(b"data:"))
    data = b"\n".join(line.removeprefix(b"data:").strip() for line in lines)
    if data and data != b"[DONE]":
        payload = orjson.loads(data)
        if isinstance(payload, dict):
            yield payload


def _error_text(payload: Any) -> str:
    error = payload.get("error", payload) if isinstance(payload, Mapping) else payload
    message = error.get("message", error) if isinstance(error, Mapping) else error
    return str(message)[:300]
