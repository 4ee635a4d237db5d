"""The grammar that XML-like tool formats share, a table of tags each.

Only the outermost tags are tokens; the inner ones are plain text, and a value may well contain
them (a file about chat templates does). So a closing tag closes only where the grammar goes on as
it must: after ``</parameter>`` another parameter or the end of the call, after that another call
or the end of the section. Else it is part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from server.parsing.arguments import ArgumentsWriter
from server.parsing.lookahead import last_name, opens
from server.parsing.markers import FRAGMENT, NAME, Follow, Lexicon, Stops, follows
from server.parsing.message import Context, ToolFormat
from server.parsing.output import Framed
from server.parsing.reader import DONE, Ended, Grammar, Next, Sink, Subgrammar, Until, Want, ignore
from server.parsing.schemas import STRING

SPACE = " \t\r\n"
FORCED = "forced"
"""What a value ends with that its own closing tag has not ended."""

_NO_NAME = re.compile(r"[\s<>{}]")
_TYPE = re.compile(r"""\sstring=["'](true|false)["']\Z""")


@dataclass(frozen=True, slots=True)
class Closing:
    """The words that may end a value, each with what must follow it.

    A word in ``implied`` opens or closes something else, so that the value ends before it: DONE is
    sent, and the word left in place. So it is with one in ``forced``, where FORCED is sent. What
    stands between a word in ``nests`` and one in ``forced`` is quoted: it ends nothing.
    ``unfinished`` words lack the rest of their tag, up to ``>``.
    """

    words: Mapping[str, Follow | None]
    implied: Container[str] = ()
    forced: Container[str] = ()
    nests: Container[str] = ()
    unfinished: Mapping[str, str] = field(default_factory=dict)
    """By word, the tag it is the beginning of."""
    unnests: Container[str] = ()
    """Words that close what a word in ``nests`` has opened, beside those in ``forced``."""


class Tagged:
    """A value up to the closing tag that the rest of the output confirms."""

    __slots__ = ("_closing", "_depth", "_sink", "_spell", "_stops", "lexicon", "tokens")

    def __init__(self, lexicon: Lexicon, closing: Closing, sink: Sink) -> None:
        self._stops = lexicon.stops(*closing.words)
        self._closing = closing
        self._sink = sink
        self._depth = 0
        """Openings of nested sections so far that have not been closed."""
        self.lexicon: Lexicon | None = lexicon
        self._spell = lexicon.spell
        self.tokens: frozenset[str] = frozenset()

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        closing, look = self._closing, 0
        while True:
            start, after, tag = self._stops.find(text, look, more)
            if tag is None:
                return self._write(text, start)
            verdict = follows(text, after, closing.words[tag], more)
            if verdict is None:
                return self._write(text, start)
            if verdict and tag in closing.nests:
                self._depth += 1
            elif self._depth:
                self._depth -= tag in closing.forced or tag in closing.unnests
            elif verdict:
                self._write(text, start)
                return self._ended(tag), self._rest(text, start, after, tag)
            look = after if tag in closing.nests or tag in closing.forced else start + 1

    def plain(self, text: str) -> None:
        """Every marker token comes as a sign."""

    def truncate(self, text: str) -> tuple[str | None, str]:
        """What was kept back is a closing tag, all but confirmed, or a piece of one."""
        start, after, tag = self._stops.find(text, 0, more=False)
        if tag is None or tag in self._closing.nests or self._depth:
            return None, ""
        return self._ended(tag), self._rest(text, start, after, tag)

    def _write(self, text: str, end: int) -> tuple[None, str]:
        if end:
            self._sink(self._spell(text[:end]))
        return None, text[end:]

    def _ended(self, tag: str) -> str:
        if tag in self._closing.forced:
            return FORCED
        if tag in self._closing.implied:
            return DONE
        return self._closing.unfinished.get(tag) or self._spell(tag)

    def _rest(self, text: str, start: int, after: int, tag: str) -> str:
        if tag in self._closing.implied or tag in self._closing.forced:
            return text[start:]
        return text[after:].partition(">")[2] if tag in self._closing.unfinished else text[after:]


@dataclass(frozen=True)
class Tags:
    """The tags of one format. ``call`` and ``parameter`` are cut where their name begins."""

    section: str
    section_end: str
    call: str
    call_end: str
    parameter: str
    parameter_end: str
    line: str = ""
    """The line break the template writes inside the parameter tags, if it does."""
    line_end: str = ""
    """What stands at the end of a value, where that is something else."""
    may_line: bool = False
    """A value may stand on lines of its own: then both line breaks are none of it."""
    ends: tuple[str, ...] = ()
    """Further markers that end a section."""
    inside: tuple[str, ...] = ()
    """Tokens around each call. With them other text in a section is part of the markup."""
    doubled: bool = False
    """A tool may be called by its name doubled, as in ``get_weather.get_weather``."""

    @cached_property
    def outer(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.section, self.section_end, *self.ends)))

    @property
    def next_parameter(self) -> str:
        """The beginning of a parameter's tag behind a value."""
        return (self.line_end or self.line) + self.parameter

    def after_call(self, lexicon: Lexicon) -> Follow:
        """What may stand behind a call."""
        words: Follow = dict.fromkeys(lexicon.words(*self.outer, *self.inside))
        if self.ends and self.section_end:
            last = dict.fromkeys(lexicon.words(*self.ends))
            words |= dict.fromkeys(lexicon.words(self.section_end), last)
        return {self.call: None} | words

    def after_parameter(self, lexicon: Lexicon) -> Follow:
        then = self.after_call(lexicon)
        words: Follow = {self.parameter: None}
        for word in lexicon.words(self.call_end):
            words[word] = then if self.section else None
        words |= then
        if lexicon.is_token(self.section_end):
            words |= dict.fromkeys(lexicon.words(self.section_end), self.again(lexicon))
        return words

    def again(self, lexicon: Lexicon) -> Follow:
        """What must stand behind the end of a section that nothing inside has announced."""
        return {word: {self.call: None} for word in lexicon.words(self.section) if word}

    def format(self, framing: str = "\n", fragment: str = "") -> ToolFormat:
        """``fragment``: a token that the tags are written with."""
        inner: tuple[str, ...] = (self.section_end, self.call, self.call_end)
        inner += (self.parameter, self.parameter_end, *self.ends, *self.inside)
        openers = tuple(filter(None, (self.section, self.call)))
        inner = tuple(filter(None, inner))
        form = ToolFormat(openers, self._section, inner, framing, self.section_end)
        if not fragment:
            return form
        tags: dict[str, Any] = {
            name: tag.replace(fragment, FRAGMENT)
            for name, tag in asdict(self).items()
            if isinstance(tag, str)
        }
        spelled = replace(self, **tags)
        return replace(form, fragment=fragment, fragmented=spelled.format(framing))

    def _section(self, opener: str, context: Context) -> Grammar:
        """Calls up to the end of the section. Other text in it is content."""
        lexicon = context.lexicon
        stops = lexicon.stops(self.call, *self.outer)
        if opener == self.call:
            opener = yield from self._unwrapped(stops, context)
        elif lexicon.is_text(opener) and not (yield from opens(opener, {self.call: None}, context)):
            return
        if opener and opener == self.section:
            yield from self.read(context)

    def read(self, context: Context) -> Subgrammar:
        """A section from behind its opening tag: the marker that ended it."""
        stops = context.lexicon.stops(self.call, *self.outer)
        write = ignore if self.inside else context.out.content.write
        stray = Framed(write, lead=SPACE, trail=SPACE)
        marker = self.section
        while marker not in (self.section_end, *self.ends):
            marker = yield Until(stops, stray.write, stray=ignore, markup=True)
            while marker == self.call:
                marker = yield from _Call(self, context).read()
        return marker

    def _unwrapped(self, stops: Stops, context: Context) -> Subgrammar:
        """Calls without their section's opening tag: what ended them."""
        tail = context.out.content.tail.rstrip()
        quoted = tail.endswith((self.section or "`", "`"))
        if quoted or not (yield from opens(self.call, self._head(context), context)):
            if quoted:
                context.out.content.unmark(self.call)
            return ""
        marker = self.call
        while marker == self.call:
            marker = yield from _Call(self, context).read()
            if marker == DONE:
                blank: list[str] = []
                marker = yield Next(stops, blank.append, keep=None)
                if marker not in stops.markers:
                    context.out.content.write("".join(blank))
        return marker

    def _head(self, context: Context) -> Follow:
        """The rest of an opening tag with the name of a tool, and the beginning of its inside."""
        return self.head(context.lexicon, context.calls.names or (NAME,))

    def head(self, lexicon: Lexicon, names: Iterable[str] = (NAME,)) -> Follow:
        inside: Follow = dict.fromkeys([self.parameter, *lexicon.words(self.call_end)])
        bare: Follow = {">": inside}
        if not self.call.endswith("name="):
            return dict.fromkeys(names, bare)
        quoted: Follow = {}
        for quote in "\"'":
            closed: Follow = {quote: bare}
            quoted[quote] = dict.fromkeys(names, closed)
        return quoted


class _Call:
    """One call, from behind the beginning of its opening tag."""

    def __init__(self, tags: Tags, context: Context) -> None:
        self._tags = tags
        self._context = context
        self._outer = tags.outer

    def read(self) -> Subgrammar:
        """Returns the marker that ended it, DONE if that was its own closing tag."""
        calls = self._context.calls
        name, _, marker = yield from self._header(calls.begin)
        if marker in self._outer or not name or _NO_NAME.search(name):
            return marker
        head, _, tail = name.partition(".")
        doubled = self._tags.doubled and head == tail and not calls.find(name)
        calls.begin(head if doubled else name)
        arguments = ArgumentsWriter(calls)
        try:
            marker = yield from self._parameters(arguments)
        except Ended as ended:
            arguments.truncate(ended.by_model)
            raise
        arguments.close()
        calls.close(spoiled=marker == FORCED)
        return marker

    def _header(
        self, begin: Callable[[str], object] = ignore
    ) -> Generator[Want, str, tuple[str, str | None, str]]:
        """The rest of an opening tag: the name, a ``string`` attribute, and what ended it."""
        parts: list[str] = []
        stops = self._context.lexicon.stops(">", "\n", *self._outer)
        marker = yield from last_name(stops, parts, begin)
        text = "".join(parts).strip()
        found = _TYPE.search(text)
        name = text[: found.start()] if found else text
        return name.strip("\"' \t"), found[1] if found else None, marker

    def _parameters(self, arguments: ArgumentsWriter) -> Subgrammar:
        tags = self._tags
        stops = self._context.lexicon.stops(tags.parameter, tags.call, tags.call_end, *self._outer)
        marker = yield from arguments.loose(stops, tags.parameter)
        while marker == tags.parameter:
            name, text, marker = yield from self._header()
            if marker not in self._outer:
                arguments.begin(name, _TYPES[text])
                marker = yield self._value(arguments)
                arguments.end()
            if marker == FORCED:
                return FORCED
            if marker == DONE or marker.endswith(tags.parameter_end):
                marker = yield Until(stops, ignore)
        return DONE if marker == tags.call_end else marker

    def _value(self, arguments: ArgumentsWriter) -> Tagged:
        line, sink = self._tags.line, arguments.write
        if line or self._tags.may_line:
            sink = (_Line(line, sink) if line else _Lines(sink)).write
        return Tagged(self._context.lexicon, self._closing(arguments), sink)

    def _closing(self, arguments: ArgumentsWriter) -> Closing:
        """The tags that end a value; a next parameter is as good, if the tool has it."""
        tags, lexicon = self._tags, self._context.lexicon
        closing: Closing = lexicon.remember((tags, self._context.sound), self._find_closing)
        if lexicon.is_token(tags.parameter):
            return closing
        names = arguments.properties.keys() - arguments.given
        following: Follow = {word: None for name in names for word in (f"{name}>", f'"{name}"')}
        return replace(closing, words={**closing.words, tags.next_parameter: following})

    def _find_closing(self) -> Closing:
        """The tags that end a value, with the line break before them."""
        tags, lexicon = self._tags, self._context.lexicon
        then = tags.after_parameter(lexicon)
        words: dict[str, Follow | None] = {}
        implied: set[str] = set()
        unfinished: dict[str, str] = {}
        for line in {"", tags.line_end or tags.line}:
            for word in lexicon.words(tags.parameter_end):
                if word == tags.parameter_end:
                    unfinished[line + word[:-1]] = word
                    words[line + word[:-1]] = _allow_drift(then)
                else:
                    words[line + word] = then
            for word in lexicon.words(tags.call_end):
                words[line + word] = tags.after_call(lexicon)
                implied.add(line + word)
        if not lexicon.is_token(tags.parameter):
            words[tags.next_parameter] = {}
            implied.add(tags.next_parameter)
        return self._outer_closing(Closing(words, implied, unfinished=unfinished))

    def _outer_closing(self, inner: Closing) -> Closing:
        """A value that its own tag does not end: a marker token may, or begins a quotation."""
        tags, lexicon = self._tags, self._context.lexicon
        if not tags.section:
            quoted = {tags.call: tags.head(lexicon)}
            ends = lexicon.words(tags.call_end)
            return replace(inner, words={**inner.words, **quoted}, nests=quoted, unnests=ends)
        if self._context.sound or not lexicon.is_token(tags.section_end):
            return inner
        end, start = lexicon.sign(tags.section_end), lexicon.sign(tags.section)
        outer: Mapping[str, Follow | None] = {end: tags.again(lexicon), start: {tags.call: None}}
        return replace(inner, words={**inner.words, **outer}, forced=(end,), nests=(start,))


def _allow_drift(then: Follow) -> Follow:
    """Models add to a closing tag at times: a number, the parameter's name."""
    end: Follow = {">": then}
    return {">": then, "=": {NAME: end}, NAME: end}


_TYPES = {
    None: None,
    "true": STRING,
    "false": frozenset({"integer", "number", "boolean", "null", "object", "array"}),
}


class _Line:
    """A sink that drops the line break, or other opening, that the text begins with."""

    __slots__ = ("_held", "_line", "_sink")

    def __init__(self, line: str, sink: Sink) -> None:
        self._line = line
        self._sink = sink
        self._held: str | None = ""

    def write(self, text: str) -> None:
        if self._held is not None:
            text = self._held + text
            if len(text) < len(self._line) and self._line.startswith(text):
                self._held = text
                return
            self._held, text = None, text.removeprefix(self._line)
        if text:
            self._sink(text)


class _Lines:
    """A sink that drops the line break that the text begins with, and then the one at its end."""

    __slots__ = ("_held", "_on_lines", "_sink")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._on_lines: bool | None = None
        self._held = ""

    def write(self, text: str) -> None:
        if self._on_lines is None:
            self._on_lines = text.startswith("\n")
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if self._on_lines and text.endswith("\n") else ""
        if text := text.removesuffix(self._held):
            self._sink(text)
