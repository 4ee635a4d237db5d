"""Folds the chunks of one answer, and reports its speed and its draft's contribution."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
BUNCHED_S = 0.0005
"""Chunks that arrive faster than this were bundled on the way, since no server is that fast."""
REASONING = ("reasoning", "reasoning_content")
"""Fields that contain reasoning. Servers that send both send the same text in both."""


@dataclass(slots=True)
class CalledTool:
    """One tool call, as far as it was received."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def to_message(self) -> Row:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class ChatAnswer:
    """One answer while it is received. ``add`` yields new text as (is reasoning, text)."""

    clock: Callable[[], float] = time.perf_counter
    content: str = ""
    calls: dict[int, CalledTool] = field(default_factory=dict)
    finish: str | None = None
    usage: Row = field(default_factory=dict)
    metrics: Row = field(default_factory=dict)
    timings: Row = field(default_factory=dict)
    chunks: int = 0
    """Number of chunks that carried output."""
    began: float = 0.0
    first: float | None = None
    last: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def add(self, chunk: Row) -> Iterator[tuple[bool, str]]:
        for name in ("usage", "metrics", "timings"):
            if isinstance(found := chunk.get(name), Mapping):
                setattr(self, name, found)
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                yield from self._add_choice(choice)

    def _add_choice(self, choice: Row) -> Iterator[tuple[bool, str]]:
        delta = choice.get("delta") or choice.get("message") or {}
        reasoning = next((delta[name] for name in REASONING if delta.get(name)), "")
        content = delta.get("content") or delta.get("refusal") or ""
        calls = delta.get("tool_calls") or ()
        self.finish = choice.get("finish_reason") or self.finish
        if not (reasoning or content or calls):
            return
        self.last = self.clock()
        self.first = self.last if self.first is None else self.first
        self.chunks += 1
        self.content += content
        for at, call in enumerate(calls):
            self._add_call(call.get("index", at), call)
        if reasoning:
            yield True, reasoning
        if content:
            yield False, content

    def _add_call(self, at: int, call: Row) -> None:
        known = self.calls.setdefault(at, CalledTool())
        function = call.get("function") or {}
        known.id = call.get("id") or known.id
        known.name += function.get("name") or ""
        known.arguments += function.get("arguments") or ""

    def to_message(self) -> dict[str, Any]:
        """Return the answer as a message of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.calls:
            message["tool_calls"] = [call.to_message() for call in self.calls.values()]
        return message

    def describe(self) -> str:
        """Describe the known tokens, times, speed and acceptance."""
        words = [self._describe_tokens(), f"{self.last - self.began:.2f} s" if self.chunks else ""]
        if self.first is not None:
            words.append(f"first after {self.first - self.began:.2f} s")
        words += [self._describe_speed(), describe_acceptance(self), self._describe_finish()]
        return ", ".join(word for word in words if word)

    @property
    def tokens(self) -> int | None:
        found = self.usage.get("completion_tokens")
        return found if isinstance(found, int) else None

    def _describe_tokens(self) -> str:
        return f"{self.chunks} chunks" if self.tokens is None else f"{self.tokens} tokens"

    def _describe_speed(self) -> str:
        """Return the server's own figure, else the tokens after the first divided by their time."""
        reported = self.timings.get("predicted_per_second") or self.metrics.get("tokens_per_second")
        if reported:
            return f"{reported:.1f} tokens/s"
        if self.tokens is None or self.first is None:
            return ""
        took = self.last - self.first
        if took < self.chunks * BUNCHED_S:  # bundled: only the total time is meaningful
            return f"{self.tokens / (self.last - self.began):.1f} tokens/s overall"
        return f"{(self.tokens - 1) / took:.1f} tokens/s"

    def _describe_finish(self) -> str:
        usual = self.finish in (None, "stop", "tool_calls")
        return "" if usual else f"ended by {self.finish}"


def describe_acceptance(answer: ChatAnswer) -> str:
    """Describe the draft's acceptance, as reported by vLLM, this gateway, llama.cpp or the
    usage.
    """
    report = answer.metrics.get("speculative_decoding") or {}
    if length := report.get("mean_acceptance_length"):
        return (
            f"acceptance length {length:.2f} ({report.get('num_accepted_draft_tokens')} of "
            f"{report.get('num_draft_tokens')} drafted)"
        )
    if drafted := answer.timings.get("draft_n"):
        return f"{answer.timings.get('draft_n_accepted', 0)} of {drafted} drafted accepted"
    details = answer.usage.get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens") or 0
    drafted = accepted + (details.get("rejected_prediction_tokens") or 0)
    return f"{accepted} of {drafted} drafted accepted" if drafted else ""
