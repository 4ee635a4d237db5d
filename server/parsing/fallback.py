"""Reads answers with a parser of the engine's: those of formats that have no grammar here.

What it makes of an answer goes the way of our own events: stop strings, outcomes of calls, custom
tools and ``parallel_tool_calls`` work. Nothing else in docs/parsers.md holds for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from engine.events import (
    ContentDelta,
    ParserEvent,
    Phase,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallStart,
)
from server.parsing.output import Output
from server.parsing.vocabulary import Decoder

logger = logging.getLogger(__name__)


class DeltaParser(Protocol):
    """Makes events of one answer, all but the ends of calls."""

    def feed(self, text: str, token_ids: Sequence[int], finished: bool) -> list[ParserEvent]: ...


class ParserFallback(Protocol):
    """Makes one for each answer."""

    def make(self, tools: Sequence[Mapping[str, Any]], prompt: Sequence[int]) -> DeltaParser: ...


class Recorder:
    """A decoder that remembers the tokens whose text has not been taken."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.flush = decoder.flush
        self.token_ids: list[int] = []

    def text(self, token_ids: Sequence[int]) -> str:
        self.token_ids += token_ids
        return self._decoder.text(token_ids)

    def take(self) -> list[int]:
        taken, self.token_ids = self.token_ids, []
        return taken


class DeltaReader:
    """Hands text to a foreign parser, and its events to the output.

    A special token waits for what follows: the one that ends an answer is none of its text. When
    the parser raises, the rest of the answer is content.
    """

    def __init__(
        self, parser: DeltaParser, recorder: Recorder, output: Output, special: Collection[int]
    ) -> None:
        self._parser: DeltaParser | None = parser
        self._recorder = recorder
        self._output = output
        self._special = special
        self._held: tuple[str, list[int]] | None = None

    def text(self, text: str) -> None:
        taken = self._recorder.take()
        if self._held is not None:
            self._feed(*self._held)
            self._held = None
        if len(taken) == 1 and taken[0] in self._special:
            self._held = text, taken
        else:
            self._feed(text, taken)

    def marker(self, marker: str) -> None:
        """Marker tokens are text here."""

    def end(self, by_model: bool) -> None:
        if self._held is not None and not by_model:
            self._feed(*self._held)
        self._feed("", [], finished=True)
        if self._output.calls.open:
            self._output.calls.end(by_model)

    def _feed(self, text: str, token_ids: list[int], finished: bool = False) -> None:
        if self._parser is None:
            self._output.content.write(text)
            return
        try:
            events = self._parser.feed(text, token_ids, finished)
        except Exception as error:  # of whatever kind: the answer goes on
            logger.warning("the fallback parser failed (%s): the rest is content", type(error))
            self._parser = None
            self._output.content.write(text)
            return
        for event in events:
            self._write(event)

    def _write(self, event: ParserEvent) -> None:
        output, calls = self._output, self._output.calls
        match event:
            case ReasoningDelta(text):
                output.phase = Phase.REASONING
                output.reasoning.write(text)
            case ContentDelta(text):
                output.phase = Phase.CONTENT
                output.content.write(text)
            case ToolCallStart(_, id, name):
                output.phase = Phase.TOOL_CALL
                if calls.open:
                    calls.close()
                calls.begin(name, id or None)
            case ToolCallDelta(_, arguments) if calls.open:
                calls.write(arguments)
