"""vLLM's own tool-call and reasoning parsers, for formats without a parser in the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.parser_manager import ParserManager

from eaglegate.text.events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)


class VllmParsers:
    """Parsers for one pair of names. Raises ValueError for names that vLLM does not know."""

    def __init__(self, tokenizer: Any, tool_parser: str | None, reasoning: str | None) -> None:
        self.tokenizer = tokenizer
        try:
            parser_class: Any = ParserManager.get_parser(
                tool_parser_name=tool_parser,
                reasoning_parser_name=reasoning,
                enable_auto_tools=tool_parser is not None,
                tokenizer=tokenizer,
            )
        except Exception as error:  # a parser may refuse a tokenizer with any exception
            names = " and ".join(filter(None, (tool_parser, reasoning)))
            raise ValueError(f"vLLM has no parser for {names} and this model: {error}") from error
        self._parser_class = parser_class

    def make(self, tools: Sequence[Mapping[str, Any]], prompt: Sequence[int]) -> VllmParser:
        """Make a parser for one answer to ``prompt``."""
        request = ChatCompletionRequest.model_validate(
            {
                "model": "model",
                "messages": [{"role": "user", "content": ""}],
                "tools": list(tools) or None,
                "tool_choice": "auto" if tools else "none",
                "stream": True,
            }
        )
        return VllmParser(self._parser_class(self.tokenizer, request.tools), request, list(prompt))


class VllmParser:
    """Reader of one answer, with the same results as vLLM's chat server."""

    def __init__(self, parser: Any, request: ChatCompletionRequest, prompt: list[int]) -> None:
        self._parser = parser
        self._request = parser.adjust_request(request)
        self._prompt = prompt
        self._num_calls = 0

    def feed(self, text: str, token_ids: Sequence[int], is_finished: bool) -> list[ParserEvent]:
        """Return the events of the next piece. The caller adds the ends of calls."""
        delta = self._parser.parse_delta(
            delta_text=text,
            delta_token_ids=list(token_ids),
            request=self._request,
            prompt_token_ids=self._prompt,
            finished=is_finished,
        )
        return [] if delta is None else self._read(delta)

    def _read(self, delta: Any) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        if delta.reasoning:
            events.append(ReasoningDelta(delta.reasoning))
        if delta.content:
            events.append(ContentDelta(delta.content))
        for call in delta.tool_calls or ():
            function = call.function
            if function is not None and function.name:
                events.append(ToolCallStart(self._num_calls, call.id or "", function.name))
                self._num_calls += 1
            if function is not None and function.arguments:
                events.append(ToolCallDelta(self._num_calls - 1, function.arguments))
        return events
