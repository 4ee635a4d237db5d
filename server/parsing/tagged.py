"""The grammar that XML-like tool formats share, a table of tags each.

Only the outermost tags are tokens; the inner ones are plain text, and a value may well contain
them (a file about chat templates does). So a closing tag closes only where the grammar goes on as
it must: after ``</parameter>`` another parameter or the end of the call, after that another call
or the end of the section. Else it is part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Container, Generator, Iterable, Mapping
from dataclasses import astuple, dataclass, replace

from server.parsing.arguments import STRING, Arguments
from server.parsing.markers import FRAGMENT, Lexicon, Stops
from server.parsing.message import Context, ToolFormat
from server.parsing.output import Framed
from server.parsing.reader import DONE, Ended, Grammar, Sink, Until, Want, ignore

SPACE = " \t\r\n"
Follow = Mapping[str, "Follow | None"]
"""What may come next, white space aside, and what then; None where the reading is settled."""
Step = Generator[Want, str, str]
LONGEST_BLANK = 100
"""White space between two tags that belong together; more of it is text."""

_TYPE = re.compile(r"""\sstring=["'](true|false)["']\Z""")


def follows(text: str, at: int, follow: Follow | None, more: bool) -> bool | None:
    """Whether ``text[at:]`` goes on as ``follow`` says; None: too early to tell.

    Where the text ends for good, a marker token or the end of the output settles it.
    """
    if follow is None:
        return True
    start = at
    while at < len(text) and text[at].isspace():
        at += 1
    if at - start > LONGEST_BLANK:
        return False
    if at == len(text):
        return None if more else True
    for word, then in follow.items():
        if text.startswith(word, at):
            return follows(text, at + len(word), then, more)
    undecided = more and any(word.startswith(text[at:]) for word in follow)
    return None if undecided else False


class Tagged:
    """A value up to the closing tag that the rest of the text confirms.

    ``closing`` maps each tag to what must follow it. A tag in ``implied`` opens or closes
    something else, so that the value ends before it: DONE is sent, and the tag left in place.
    """

    __slots__ = ("_closing", "_implied", "_sink", "_stops", "plain", "tokens")

    def __init__(
        self,
        stops: Stops,
        outer: Stops,
        closing: Mapping[str, Follow],
        sink: Sink,
        implied: Container[str] = (),
    ) -> None:
        self._stops = stops
        self._closing = closing
        self._implied = implied
        self._sink = sink
        self.plain = sink
        self.tokens = outer.tokens | stops.tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        look = 0
        while True:
            cut, after, tag = self._stops.find(text, look, more)
            closes = tag and follows(text, after, self._closing.get(tag), more)
            if closes is not False:
                break
            look = cut + 1
        if cut:
            self._sink(text[:cut])
        if not closes or tag is None:
            return None, text[cut:]
        return (DONE, text[cut:]) if tag in self._implied else (tag, text[after:])

    def cut(self, text: str) -> tuple[str | None, str]:
        """What was kept back is a closing tag, all but confirmed, or a piece of one."""
        _, after, tag = self._stops.find(text, 0, more=False)
        if tag is None:
            return None, ""
        return (DONE, text) if tag in self._implied else (tag, text[after:])


class Ahead:
    """Whether the text goes on as ``follow`` says: YES or NO, and nothing is taken."""

    __slots__ = ("_follow", "tokens")
    YES, NO = "yes", "no"

    def __init__(self, follow: Follow, stops: Stops) -> None:
        self._follow = follow
        self.tokens = stops.tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        verdict = follows(text, 0, self._follow, more) if more or text.strip() else False
        if verdict is None:
            return None, text
        return self.YES if verdict else self.NO, text

    def plain(self, text: str) -> None:
        """A marker token is no text that could go on."""

    def cut(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


class Looking:
    """Whether the text begins with ``whole``: YES or NO, and nothing is taken.

    ``beginning`` matches what may still become it. A marker in ``tokens`` is sent as such.
    """

    __slots__ = ("_beginning", "_whole", "tokens")
    YES, NO = Ahead.YES, Ahead.NO

    def __init__(
        self,
        whole: re.Pattern[str],
        beginning: re.Pattern[str],
        tokens: frozenset[str] = frozenset(),
    ) -> None:
        self._whole = whole
        self._beginning = beginning
        self.tokens = tokens

    def take(self, text: str, more: bool) -> tuple[str | None, str]:
        if self._whole.match(text):
            return self.YES, text
        return (None if more and self._beginning.match(text) else self.NO), text

    def plain(self, text: str) -> None:
        """A marker token is no text that could go on."""

    def cut(self, text: str) -> tuple[str | None, str]:
        return self.NO, text


def opens(opener: str, follow: Follow, context: Context) -> Generator[Want, str, bool]:
    """Whether a plain-text ``opener`` opens anything: not unless the text goes on as it must."""
    try:
        opened = (yield Ahead(follow, context.lexicon.stops())) == Ahead.YES
    except Ended:
        context.out.content.write(opener)
        raise
    if not opened:
        context.out.content.write(opener)
    return opened


@dataclass(frozen=True, slots=True)
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

    def after_call(self, lexicon: Lexicon) -> Follow:
        """What may stand behind a call, other than the end of the text before a token."""
        return {word: None for word in (self.call, self.section_end) if not lexicon.is_token(word)}

    def after_parameter(self, lexicon: Lexicon) -> Follow:
        then = self.after_call(lexicon)
        return {self.parameter: None, self.call_end: then} | dict(then)

    def format(self, framing: str = "\n", fragment: str = "") -> ToolFormat:
        """``fragment``: a token that the tags are written with."""
        inner = (self.section_end, self.call, self.call_end, self.parameter, self.parameter_end)
        form = ToolFormat((self.section,), self._section, inner, framing, self.section_end)
        if not fragment:
            return form
        spelled = Tags(*(part.replace(fragment, FRAGMENT) for part in astuple(self)))
        return replace(form, fragment=fragment, fragmented=spelled.format(framing))

    def _section(self, opener: str, context: Context) -> Grammar:
        """Calls up to the end of the section. Other text in it is content."""
        lexicon = context.lexicon
        stops = lexicon.stops(self.call, self.section, self.section_end)
        content = context.out.content.write
        if lexicon.is_text(opener) and not (yield from opens(opener, {self.call: None}, context)):
            return
        stray = Framed(content, lead=SPACE, trail=SPACE)
        marker = opener
        while marker != self.section_end:
            marker = yield Until(stops, stray.write, stray=ignore, markup=True)
            while marker == self.call:
                marker = yield from _Call(self, context).read()


class _Call:
    """One call, from behind the beginning of its opening tag."""

    def __init__(self, tags: Tags, context: Context) -> None:
        self._tags = tags
        self._context = context
        self._outer = (tags.section, tags.section_end)

    def read(self) -> Step:
        """Returns the marker that ended it, DONE if that was its own closing tag."""
        name, _, marker = yield from self._header()
        if marker in self._outer or not name:
            return marker
        calls = self._context.calls
        calls.begin(name)
        arguments = Arguments(calls)
        try:
            marker = yield from self._parameters(arguments)
        except Ended as ended:
            arguments.cut(ended.by_model)
            raise
        arguments.close()
        calls.close()
        return marker

    def _header(self) -> Generator[Want, str, tuple[str, str | None, str]]:
        """The rest of an opening tag: the name, a ``string`` attribute, and what ended it."""
        parts: list[str] = []
        marker = yield Until(self._context.lexicon.stops(">", "\n", *self._outer), parts.append)
        text = "".join(parts).strip()
        found = _TYPE.search(text)
        name = text[: found.start()] if found else text
        return name.strip("\"' \t"), found[1] if found else None, marker

    def _parameters(self, arguments: Arguments) -> Step:
        tags = self._tags
        stops = self._context.lexicon.stops(tags.parameter, tags.call, tags.call_end, *self._outer)
        marker = yield from arguments.loose(stops, tags.parameter)
        while marker == tags.parameter:
            name, text, marker = yield from self._header()
            if marker not in self._outer:
                arguments.begin(name, _TYPES[text])
                marker = yield self._value(arguments)
                arguments.end()
            if marker in (DONE, tags.parameter_end, tags.line + tags.parameter_end):
                marker = yield Until(stops, ignore)
        return DONE if marker == tags.call_end else marker

    def _value(self, arguments: Arguments) -> Tagged:
        tags, lexicon = self._tags, self._context.lexicon
        closing = self._closing(arguments.properties.keys() - arguments.given)
        implied = {tags.line + tags.call_end, tags.call_end, tags.line + tags.parameter}
        lines = _Lines(tags.line, arguments.write, lexicon.is_token(tags.parameter_end))
        sink = lines.write if tags.line else arguments.write
        inner = (tags.parameter, tags.parameter_end, tags.call_end)
        tokens = lexicon.stops(*self._outer, *filter(lexicon.is_token, inner))
        return Tagged(lexicon.stops(*closing), tokens, closing, sink, implied)

    def _closing(self, names: Iterable[str]) -> dict[str, Follow]:
        """The plain-text tags that end a value, with the line break before them."""
        tags, lexicon = self._tags, self._context.lexicon
        begins: Follow = {word: None for name in names for word in (f"{name}>", f'"{name}"')}
        closing: dict[str, Follow] = {tags.line + tags.parameter: begins}
        for line in {"", tags.line}:
            closing[line + tags.parameter_end] = tags.after_parameter(lexicon)
            closing[line + tags.call_end] = tags.after_call(lexicon)
        inner = (tags.parameter, tags.parameter_end, tags.call_end)
        sure = tuple(filter(lexicon.is_token, inner))
        return {tag: then for tag, then in closing.items() if not (sure and tag.endswith(sure))}


_TYPES = {
    None: None,
    "true": STRING,
    "false": frozenset({"integer", "number", "boolean", "null", "object", "array"}),
}


class _Lines:
    """A sink that drops the line break the text begins with, and ``last`` the one it ends with."""

    __slots__ = ("_first", "_held", "_last", "_line", "_sink")

    def __init__(self, line: str, sink: Sink, last: bool) -> None:
        self._line = line
        self._last = last
        self._sink = sink
        self._first = True
        self._held = ""

    def write(self, text: str) -> None:
        if self._first:
            self._first = False
            text = text.removeprefix(self._line)
        text = self._held + text
        body = text.removesuffix(self._line) if self._last else text
        self._held = text[len(body) :]
        if body:
            self._sink(body)
