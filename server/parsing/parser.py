"""A parser per answer: token ids in, events out, the same for every cut of the output."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from engine.events import ParserEvent, Phase
from engine.types import FinishReason
from server.parsing.answer import read_message
from server.parsing.emitter import Emitter
from server.parsing.fallback import DeltaParser, DeltaReader, Recorder
from server.parsing.markers import FRAGMENT
from server.parsing.message import NO_TOOLS, Context, ReasoningFormat, ToolFormat
from server.parsing.output import Calls, NewId, Output, random_id
from server.parsing.reader import Reader
from server.parsing.registry import reasoning_format, tool_format
from server.parsing.stop import StopText
from server.parsing.tools import OfferedTools
from server.parsing.vocabulary import Vocabulary

_REASONING = Phase.REASONING
"""Looking up a member of an enumeration costs more than the rest of a test, for every token."""


class TextReader(Protocol):
    """What a parser hands text and marker tokens to."""

    def text(self, text: str) -> None: ...

    def marker(self, marker: str) -> None: ...

    def end(self, by_model: bool) -> None: ...


class TokenDecoder(Protocol):
    """What a parser gets the text of its tokens from."""

    def text(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class Verbatim:
    """Everything is content."""

    def __init__(self, out: Emitter) -> None:
        self.text = out.content

    def marker(self, marker: str) -> None:
        self.text(marker)

    def end(self, by_model: bool) -> None:
        """Nothing was held back."""


class Parser:
    """Reads one answer. ``feed`` any number of times, then ``flush`` once.

    ``structure`` says which token ids are no text: markers by their text, None for the others.
    ``singly``: plain text may end the thinking or the answer, so that every token is looked at.
    """

    def __init__(
        self,
        structure: Mapping[int, str | None],
        decoder: TokenDecoder,
        reader: TextReader,
        output: Output,
        stop: StopText | None,
        singly: bool,
    ) -> None:
        self._structure = structure
        self._decoder = decoder
        self._reader = reader
        self._output = output
        self._drain = output.drain
        self._stop = stop
        self._singly = singly
        self._sink = stop.text if stop else reader.text
        self.reasoning_tokens = 0
        """Tokens spent on thinking, the marker that ends it included."""

    @property
    def phase(self) -> Phase:
        """What is being written."""
        return self._output.phase

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text. What follows it is dropped."""
        return self._stop.stopped if self._stop else None

    def feed(self, token_ids: Sequence[int]) -> list[ParserEvent]:
        """The events of the tokens of one step, or of any part of the output."""
        structure, start = self._structure, 0
        if not self._singly and len(token_ids) == 1 and token_ids[0] not in structure:
            if self._output.phase is _REASONING:
                self.reasoning_tokens += 1
            self._sink(self._decoder.text(token_ids))
            return self._drain()
        for at, token_id in enumerate(token_ids):
            if token_id in structure:
                if start < at:
                    self._text(token_ids[start:at])
                self._marker(structure[token_id])
                start = at + 1
        if start < len(token_ids):
            self._text(token_ids[start:])
        return self._drain()

    def flush(self, finish: FinishReason) -> list[ParserEvent]:
        """The events of what was held back, and of a call that the end cut short."""
        if self._stop and not self.stopped:
            self._stop.settle()
        self._reader.end(finish is FinishReason.STOP and not self.stopped)
        return self._drain()

    def finish_reason(self, finish: FinishReason) -> str:
        """The client's finish reason, after ``flush``: finished calls turn stop into tool_calls."""
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
        """Where plain text may start or end the thinking, each token is counted as it stands."""
        output = self._output
        for token_id in token_ids:
            if self._stop and self._stop.stopped:
                return
            before = output.phase
            self._sink(self._decoder.text((token_id,)))
            if before is _REASONING or output.phase is _REASONING:
                self.reasoning_tokens += 1

    def _marker(self, marker: str | None) -> None:
        if marker is None or (self._stop and self._stop.stopped):
            return
        unfinished = self._decoder.flush()
        if unfinished:
            self._sink(unfinished)
        if marker == FRAGMENT:
            self._sink(marker)
            return
        if self._stop and self._stop.marker(marker):
            return
        before = self._output.phase
        self._reader.marker(marker)
        self.reasoning_tokens += before is _REASONING or self._output.phase is _REASONING


def make_parser(
    vocabulary: Vocabulary,
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = (),
    starts_in: Phase = Phase.CONTENT,
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    parallel: bool = True,
    skip_special_tokens: bool = True,
    new_id: NewId | None = None,
    custom: Collection[str] = (),
    sound: bool = False,
    spelled: bool = False,
    repairs: bool = True,
) -> Parser:
    """A parser for one answer, by the names of its formats.

    ``tools`` are those offered, as the API writes them; with None, for want of knowledge, no call
    counts as unknown. Those named in ``custom`` take one text. Without ``parallel`` only the first
    call is delivered. Of calls held by a grammar, ``sound`` says that they are JSON, ``spelled``
    that any tokens make a marker. With ``repairs`` arguments are mended where that is safe. Raises
    ``UnknownParser``.
    """
    tool_form, fragment = _tool_form(tool_parser, vocabulary)
    reasoning = fit_reasoning(reasoning_parser, vocabulary)
    out = Emitter(fragment)
    calls = Calls(out, OfferedTools(tools), new_id or tool_form.new_id, parallel, custom, repairs)
    trail = tool_form.framing or (reasoning.framing if reasoning.answer else "")
    output = Output(out, calls, reasoning.framing, trail)
    lexicon = vocabulary.spelled if spelled else vocabulary.lexicon
    context = Context(lexicon, output, tool_form, reasoning, starts_in, sound)
    reads = tool_parser or reasoning_parser
    reader: TextReader = Reader(read_message(context)) if reads else Verbatim(out)
    thinking = reasoning.markers + (tool_form.markers if tool_form.channels else ())
    return Parser(
        vocabulary.structure(
            tool_form.markers + thinking,
            fragment,
            skip_special_tokens,
            tool_form.texts + reasoning.texts,
        ),
        vocabulary.decoder(),
        reader,
        output,
        StopText(stop, reader.text, include_stop) if stop else None,
        bool(stop) or lexicon.stops(*thinking).pattern is not None,
    )


def make_fallback_parser(
    vocabulary: Vocabulary,
    parser: DeltaParser,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    stop: tuple[str, ...] = (),
    include_stop: bool = False,
    parallel: bool = True,
    custom: Collection[str] = (),
) -> Parser:
    """A parser for one answer, as ``make_parser`` makes one."""
    out = Emitter()
    calls = Calls(out, OfferedTools(tools), random_id, parallel, custom, repairs=False)
    output, recorder = Output(out, calls), Recorder(vocabulary.decoder())
    special = {token.id for token in vocabulary.added.values() if token.special}
    reader = DeltaReader(parser, recorder, output, special)
    stopping = StopText(stop, reader.text, include_stop) if stop else None
    return Parser({}, recorder, reader, output, stopping, singly=True)


def fit_reasoning(name: str | None, vocabulary: Vocabulary) -> ReasoningFormat:
    """The reasoning format as this vocabulary writes it. Raises ``UnknownParser``."""
    form = reasoning_format(name)
    return form.suffixed(vocabulary.suffix) if form.suffixed and vocabulary.suffix else form


def _tool_form(name: str | None, vocabulary: Vocabulary) -> tuple[ToolFormat, str]:
    """The format as this vocabulary writes it, and the token that FRAGMENT stands for in it."""
    form = tool_format(name) if name else NO_TOOLS
    if form.suffixed and vocabulary.suffix:
        form = form.suffixed(vocabulary.suffix)
    fragment = form.fragment if form.fragment in vocabulary.ids else ""
    return form.fragmented if fragment and form.fragmented else form, fragment
