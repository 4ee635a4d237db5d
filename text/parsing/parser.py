"""Parser of one answer: token ids in, events out, however the ids are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from eaglegate.text.events import FinishReason, ParserEvent, Phase
from eaglegate.text.parsing.fold import Emitter
from eaglegate.text.parsing.markers import FRAGMENT
from eaglegate.text.parsing.output import Output
from eaglegate.text.parsing.stop import StopText
from eaglegate.text.parsing.vocabulary import Decoder

_REASONING = Phase.REASONING
"""Phase.REASONING, cached: for every token, looking it up would cost more than the test itself."""


class TextReader(Protocol):
    """Receiver of a parser's text and marker tokens."""

    def text(self, text: str) -> None: ...

    def marker(self, marker: str) -> None: ...

    def end(self, by_model: bool) -> None: ...


class Verbatim:
    """Reader that treats all text as content."""

    def __init__(self, out: Emitter) -> None:
        self.text = out.content

    def marker(self, marker: str) -> None:
        self.text(marker)

    def end(self, by_model: bool) -> None:
        """Do nothing: no text was held back."""


class Parser:
    """Parser of one answer. Call ``feed`` any number of times, then ``flush`` once.

    ``structure`` maps the token ids that are not text to their marker, or to None without one.
    ``singly``: plain text may end the thinking or the answer, so tokens are read one by one.
    """

    def __init__(
        self,
        structure: Mapping[int, str | None],
        decoder: Decoder,
        reader: TextReader,
        output: Output,
        stop: StopText | None,
        singly: bool,
    ) -> None:
        self._structure = structure
        self._decoder = decoder
        self._reader = reader
        self._output = output
        self._reads_runs = stop is None and not singly
        """True if plain-text tokens of one step can be decoded together."""
        self._is_plain = structure.keys().isdisjoint
        self._drain = output.drain
        self._stop = stop
        self._singly = singly
        self._sink = stop.text if stop else reader.text
        self.reasoning_tokens = 0
        """Number of tokens spent on thinking, including the end marker."""

    @property
    def phase(self) -> Phase:
        """Phase of the answer that is being written."""
        return self._output.phase

    @property
    def stopped(self) -> str | None:
        """Stop string that ended the text, after which all text is dropped; None without one."""
        return self._stop.stopped if self._stop else None

    def switch_stops(self, on: bool) -> None:
        """Let stop strings that end in the following tokens end the text, or not."""
        if self._stop:
            self._stop.is_off = not on

    def feed(self, token_ids: Sequence[int]) -> list[ParserEvent]:
        """Return the events of one step's tokens, or of any part of the output."""
        if self._reads_runs and token_ids and self._is_plain(token_ids):
            if self._output.phase is _REASONING:
                self.reasoning_tokens += len(token_ids)
            self._sink(self._decoder.text(token_ids))
            return self._drain()
        structure, start = self._structure, 0
        for index, token_id in enumerate(token_ids):
            if token_id in structure:
                if start < index:
                    self._text(token_ids[start:index])
                self._marker(structure[token_id])
                start = index + 1
        if start < len(token_ids):
            self._text(token_ids[start:])
        return self._drain()

    def flush(self, finish: FinishReason) -> list[ParserEvent]:
        """Return the events of text that was held back, and of a call that the end cut short."""
        if self._stop and not self.stopped:
            self._stop.settle()
        self._reader.end(finish is FinishReason.STOP and not self.stopped)
        self._output.release()
        return self._drain()

    def finish_reason(self, finish: FinishReason) -> str:
        """Return the client's finish reason after ``flush``: calls turn stop into tool_calls."""
        calls = self._output.calls
        if finish is not FinishReason.STOP or not calls.num:
            return finish.value
        return "length" if self.stopped and calls.truncated else "tool_calls"

    def _text(self, token_ids: Sequence[int]) -> None:
        if self._stop and self._stop.stopped:
            return
        if self._singly:
            self._one_by_one(token_ids)
            return
        if self._output.phase is _REASONING:
            self.reasoning_tokens += len(token_ids)
        self._sink(self._decoder.text(token_ids))

    def _one_by_one(self, token_ids: Sequence[int]) -> None:
        """Read tokens one by one, because plain text may start or end the thinking."""
        output = self._output
        for token_id in token_ids:
            if self._stop and self._stop.stopped:
                return
            phase = output.phase
            self._sink(self._decoder.text((token_id,)))
            if phase is _REASONING or output.phase is _REASONING:
                self.reasoning_tokens += 1

    def _marker(self, marker: str | None) -> None:
        if marker is None or (self._stop and self._stop.stopped):
            return
        tail = self._decoder.flush()
        if tail:
            self._sink(tail)
        if marker == FRAGMENT:
            self._sink(marker)
            return
        if self._stop and self._stop.marker(marker):
            return
        phase = self._output.phase
        self._reader.marker(marker)
        self.reasoning_tokens += phase is _REASONING or self._output.phase is _REASONING
