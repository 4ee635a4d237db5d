"""The routine that XML-like tool formats share. A format is a table of tags.

Only the outermost tags are tokens. The inner tags are plain text, which a value may contain, so
``text/parsing/tagged.py`` finds the value's end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

from eaglegate.text.parsing.arguments import ArgumentsWriter
from eaglegate.text.parsing.json_calls import JsonCalls
from eaglegate.text.parsing.markers import (
    FRAGMENT,
    NAME,
    Delimiters,
    Follow,
    Lexicon,
    match_beginnings,
)
from eaglegate.text.parsing.message import (
    Ahead,
    ParsingContext,
    Skipping,
    ToolFormat,
    last_name,
    opens,
)
from eaglegate.text.parsing.output import Framed
from eaglegate.text.parsing.reader import (
    DONE,
    Ended,
    Next,
    Routine,
    Subroutine,
    TextSink,
    Until,
    Want,
    ignore,
)
from eaglegate.text.parsing.schemas import STRING
from eaglegate.text.parsing.tagged import FORCED, CallValue, Closing
from eaglegate.text.parsing.value_text import LeadingBreak, MisspeltEnd, OwnLines, has_own_tags

SPACE = " \t\r\n"
_EMPTY = "/>"
"""End of an opening tag that closes itself."""
_NO_NAME = re.compile(r"[\s<>{}]")
_ATTRIBUTE = re.compile(r"""\s*string=["'](?:true|false)["']>""")
_TYPE = re.compile(r"""\sstring=["'](true|false)["']\Z""")


@dataclass(frozen=True)
class Tags:
    """Tags of one format. ``call`` and ``parameter`` end where a name begins."""

    section: str
    section_end: str
    call: str
    call_end: str
    parameter: str
    parameter_end: str
    line: str = ""
    """Line break that the template writes inside the parameter tags, if any."""
    line_end: str = ""
    """Text at the end of a value, if it is not ``line``."""
    may_line: bool = False
    """True if a value may be on lines of its own, whose two line breaks are not part of it."""
    ends: tuple[str, ...] = ()
    """Other markers that end a section."""
    inside: tuple[str, ...] = ()
    """Tokens around each call. With such tokens, other text in a section is part of the markup."""
    others: tuple[tuple[str, str], ...] = ()
    """Tags that models write instead of the section's own."""
    attributes: tuple[str, str] = ("", "")
    """``call`` and ``parameter`` in the form of models that put the name into an attribute."""
    strays: tuple[str, ...] = ()
    """Tags of an older format that models write between calls."""
    older: Tags | None = None
    """Tags of an older version, which models write instead of these."""
    doubled: bool = False
    """True if a tool may be called by its doubled name, as in ``get_weather.get_weather``."""

    @cached_property
    def outer(self) -> tuple[str, ...]:
        extra_tags = (tag for pair in self.others for tag in pair)
        return tuple(filter(None, (self.section, self.section_end, *self.ends, *extra_tags)))

    @cached_property
    def spellings(self) -> tuple[Mapping[str, Tags], Mapping[str, Tags]]:
        """These tags and the form with attributes, by the opening of a call and of a parameter."""
        call, parameter = self.attributes
        variants = [replace(self, call=call, parameter=parameter, attributes=("", ""))]
        forms = (self, *variants) if call else (self,)
        return {tags.call: tags for tags in forms}, {tags.parameter: tags for tags in forms}

    @cached_property
    def sections(self) -> tuple[str, ...]:
        """Markers that open a section."""
        return tuple(filter(None, (self.section, *(opening for opening, _ in self.others))))

    @cached_property
    def section_ends(self) -> tuple[str, ...]:
        return (self.section_end, *self.ends, *(closing for _, closing in self.others))

    @cached_property
    def _tails(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Patterns for closing tags after a closed section, and for their beginnings."""
        tags = (self.parameter_end, self.call_end, *self.section_ends)
        pattern = rf"(?:\s{{0,99}}+(?:{'|'.join(map(re.escape, tags))}))"
        beginnings = "|".join(map(match_beginnings, tags))
        return re.compile(f"{pattern}+"), re.compile(rf"{pattern}*+\s{{0,99}}+(?:\Z|{beginnings})")

    @property
    def next_parameters(self) -> tuple[str, ...]:
        """Beginnings of a parameter's tag after a value that is not closed."""
        if self.line_end:
            return self.parameter, self.line_end + self.parameter
        return (
            (self.line + self.parameter,) if self.line else (self.parameter, f"\n{self.parameter}")
        )

    def after_call(self, lexicon: Lexicon) -> Follow:
        """List the words that may follow a call."""
        words: Follow = dict.fromkeys(lexicon.words(*self.outer, *self.inside))
        if self.ends and self.section_end:
            ends = dict.fromkeys(lexicon.words(*self.ends))
            words |= dict.fromkeys(lexicon.words(self.section_end), ends)
        return dict.fromkeys(lexicon.words(self.call)) | words

    def after_parameter(self, lexicon: Lexicon) -> Follow:
        next_words = self.after_call(lexicon)
        words: Follow = dict.fromkeys(lexicon.words(self.parameter))
        for word in lexicon.words(self.call_end):
            words[word] = next_words if self.section else None
        if self.strays:
            words |= dict.fromkeys(self.strays, next_words)
        words |= next_words
        if lexicon.is_token(self.section_end):
            words |= dict.fromkeys(lexicon.words(self.section_end), self.again(lexicon))
        return words

    def frame(self, lexicon: Lexicon) -> tuple[str, ...]:
        """List the words between the last value of a call and the next call."""
        words = lexicon.words(self.call_end, *self.outer, *self.inside)
        return (*words, *self.strays, *(("function",) if self.inside else ()))

    def again(self, lexicon: Lexicon) -> Follow:
        """List the words that must follow the end of a section inside an unclosed value."""
        calls: Follow = dict.fromkeys(lexicon.words(self.call))
        return {word: calls for word in lexicon.words(self.section) if word}

    def format(self, framing: str = "\n", fragment: str = "") -> ToolFormat:
        """Make a tool format. ``fragment`` is a token that the tags are written with."""
        inner_markers: tuple[str, ...] = (*self.section_ends, self.call, self.call_end)
        inner_markers += (self.parameter, self.parameter_end, *self.inside)
        openers = (*self.sections, self.call)
        if not self.section:
            openers += (self.parameter,)
        inner_markers = tuple(filter(None, inner_markers))
        if self.older:
            older_format = self.older.format()
            openers, inner_markers = (
                openers + older_format.openers,
                inner_markers + older_format.inner,
            )
        form = ToolFormat(openers, self._section, inner_markers, framing, self.section_end)
        if not fragment:
            return form
        fragment_form = self._spell(fragment).format(framing)
        return replace(form, fragment=fragment, fragmented=fragment_form)

    def _spell(self, fragment: str) -> Tags:
        """Return the tags with FRAGMENT in place of a token that they are written with."""

        def spell(tag: str) -> str:
            return tag.replace(fragment, FRAGMENT)

        tags: dict[str, Any] = {
            name: spell(tag) for name, tag in asdict(self).items() if isinstance(tag, str)
        }
        extra_pairs = tuple((spell(opening), spell(closing)) for opening, closing in self.others)
        older_tags = self.older._spell(fragment) if self.older else None
        return replace(self, **tags, others=extra_pairs, older=older_tags)

    def _section(self, opener: str, context: ParsingContext) -> Routine:
        """Read calls up to the end of the section, in which other text is content."""
        if self.older and opener in (*self.older.sections, self.older.call):
            yield from self.older._section(opener, context)
            return
        lexicon = context.lexicon
        delimiters = lexicon.delimiters(self.call, *self.outer)
        if opener == self.parameter:
            yield from self._read_orphan(context)
        elif opener == self.call:
            opener = yield from self._read_unwrapped(delimiters, context)
        elif lexicon.is_text(opener) and not (
            yield from opens(opener, context.follow(None, self.call), context)
        ):
            return
        if opener in self.sections:
            yield from self.read(context)
        if self.section:
            yield Skipping(*self._tails, lexicon=lexicon)
            verdict = yield Ahead(
                context.follow(None, self.parameter), lexicon.delimiters(), lexicon
            )
            if verdict == Ahead.YES:
                context.calls.doubt()

    def read(self, context: ParsingContext, marker: str = "") -> Subroutine:
        """Read a section from after its opening tag or from ``marker``. Return its end marker."""
        calls, parameters = self.spellings
        delimiters = context.lexicon.delimiters(
            *calls, self.call_end, *self.strays, *self.outer, *parameters, self.parameter_end
        )
        is_broken = False
        write = ignore if self.inside else context.out.content.write
        stray = Framed(write, lead=SPACE, trail=SPACE)
        marker = marker or (yield Next(delimiters, keep=None, markup=True))
        if marker == "{":
            marker = yield from self._json(context)
        while marker not in self.section_ends:
            if marker in calls:
                call = _Call(calls[marker], context, parameters)
                marker = yield from call.read(is_broken)
                is_broken |= call.is_broken
            else:
                if marker in parameters or marker == self.parameter_end:
                    context.calls.doubt()
                    is_broken = True
                    stray.write(marker)
                marker = yield Until(delimiters, stray.write, stray=context.stray, markup=True)
        return marker

    def _read_orphan(self, context: ParsingContext) -> Routine:
        """Read a parameter of a call with a broken opening tag as content, up to the call's end.

        Otherwise a call quoted in the value would be delivered.
        """
        tools = map(context.calls.find, context.calls.names)
        keys = {key for tool in tools if tool for key in tool.properties}
        quoted_names: Follow = {quote: {key: {quote: None} for key in keys} for quote in "\"'"}
        if not keys or not (yield from opens(self.parameter, quoted_names, context)):
            return
        content = context.out.content
        context.calls.doubt()
        content.unmark(self.parameter)
        marker = yield Until(context.lexicon.delimiters(self.call_end), content.write)
        content.write(marker)

    def _json(self, context: ParsingContext) -> Subroutine:
        """Read calls that a model writes as JSON instead of tags."""
        delimiters, write = context.lexicon.delimiters(*self.outer), context.out.content.write
        return (
            yield from JsonCalls(context.calls, delimiters, write, quotes=context.quotes()).read()
        )

    def _read_unwrapped(self, delimiters: Delimiters, context: ParsingContext) -> Subroutine:
        """Read calls without their section's opening tag. Return the marker that ended them."""
        content = context.out.content
        is_spelled = bool(self.section) and content.tail.rstrip().endswith(self.section)
        is_quoted = is_spelled or content.fence.is_inline
        if is_quoted or not (yield from opens(self.call, self._head(context), context)):
            if is_quoted:
                content.unmark(self.call)
            return ""
        marker = self.call
        while marker == self.call:
            marker = yield from _Call(self, context, self.spellings[1]).read()
            if marker == DONE:
                blanks: list[str] = []
                marker = yield Next(delimiters, blanks.append, keep=None)
                if marker not in delimiters.markers:
                    content.write("".join(blanks))
        return marker

    def _head(self, context: ParsingContext) -> Follow:
        """Return the rest of a call's opening tag: a tool's name and the next tag."""
        return self.head(context.lexicon, context.calls.names or (NAME,))

    def head(self, lexicon: Lexicon, names: Iterable[str] = (NAME,)) -> Follow:
        bare_head, quoted_head = self._heads(lexicon, names)
        if self.call.endswith("name="):
            return quoted_head
        return {"name=": quoted_head, **bare_head} if self.call.endswith(" ") else bare_head

    def any_head(self, lexicon: Lexicon) -> Follow:
        """Return the rest of an opening tag in any form that models write."""
        bare_head, quoted_head = self._heads(lexicon, (NAME,))
        return {"name=": {**quoted_head, **bare_head}, **quoted_head, **bare_head}

    def _heads(self, lexicon: Lexicon, names: Iterable[str]) -> tuple[Follow, Follow]:
        """Return the rest of an opening tag with a bare name and with a quoted one."""
        next_words: Follow = dict.fromkeys(lexicon.words(self.parameter, self.call_end))
        bare_follow: Follow = {">": next_words}
        bare_head: Follow = dict.fromkeys(names, bare_follow)
        quoted_head: Follow = {
            quote: {name: {quote: bare_follow} for name in bare_head} for quote in "\"'"
        }
        return bare_head, quoted_head


class _Call:
    """Reader of one call, from after the beginning of its opening tag."""

    def __init__(self, tags: Tags, context: ParsingContext, spellings: Mapping[str, Tags]) -> None:
        self._tags = tags
        self._spellings = spellings
        self._context = context
        self._outer = tags.outer
        self.is_broken = False
        """True if a value may continue after its end."""
        self._behind: list[str] = []
        """Text after a parameter."""

    def read(self, is_broken: bool = False) -> Subroutine:
        """Read the call. Return the marker that ended it, or DONE for its own closing tag.

        ``is_broken``: the call may be part of a value in an earlier call with broken tags.
        """
        calls = self._context.calls
        name, _, marker = yield from self._header(calls.begin)
        if marker in self._outer or not name or _NO_NAME.search(name):
            return marker
        name_half = name[: len(name) // 2]
        is_doubled = (
            self._tags.doubled and name == f"{name_half}.{name_half}" and not calls.find(name)
        )
        calls.begin(name_half if is_doubled else name)
        if is_broken:
            calls.spoil()
        if marker == _EMPTY:
            calls.close()
            return DONE
        with ArgumentsWriter(calls) as arguments:
            marker = yield from self._parameters(arguments)
        calls.close(is_spoiled=marker == FORCED)
        return marker

    def _header(
        self, begin: Callable[[str], object] = ignore
    ) -> Generator[Want, str, tuple[str, str | None, str]]:
        """Read the rest of an opening tag. Return the name, a ``string`` attribute and the end."""
        parts: list[str] = []
        delimiters = self._context.lexicon.delimiters(">", "\n", *self._outer)
        marker = yield from last_name(delimiters, parts, begin)
        text = "".join(parts).strip()
        if marker == ">" and text.endswith(('"/', '" /')):
            text, marker = text.removesuffix("/").rstrip(), _EMPTY
        if text.count('"') % 2 or (marker == "\n" and self._tags.parameter.endswith("name=")):
            self._context.calls.spoil()
        match = _TYPE.search(text)
        name = text[: match.start()] if match else text
        return name.removeprefix("name=").strip("\"' \t"), match[1] if match else None, marker

    def _parameters(self, arguments: ArgumentsWriter) -> Subroutine:
        tags, spellings = self._tags, self._spellings
        ends = tags.call, tags.call_end, *tags.strays, *self._outer
        delimiters = self._context.lexicon.delimiters(*spellings, *ends)
        marker = yield from arguments.loose(delimiters, *spellings)
        while marker in spellings:
            self._tags = tags = spellings[marker]
            name, text, marker = yield from self._header()
            if marker in self._outer:
                self._context.calls.spoil()
            else:
                arguments.begin(name, _TYPES[text])
                if marker != _EMPTY or (yield from self._has_value(delimiters)):
                    marker = yield from self._read_value(name, arguments)
                else:
                    marker = DONE
                arguments.end()
            if marker == FORCED:
                return FORCED
            if marker == DONE or marker.endswith(tags.parameter_end):
                self._behind.clear()
                marker = yield Until(delimiters, partial(self._distrust, arguments))
                self.is_broken |= tags.parameter_end in "".join(self._behind)
        if marker == tags.call or (marker != tags.call_end and arguments.is_empty):
            self._context.calls.spoil()
        return DONE if marker in (tags.call_end, *tags.strays) else marker

    def _has_value(self, delimiters: Delimiters) -> Generator[Want, str, bool]:
        """Return True if text follows a self-closing tag, whose slash may then be a mistake."""
        next_words = dict.fromkeys(("<", *delimiters.markers))
        lexicon = self._context.lexicon
        if (yield Ahead(next_words, lexicon.delimiters(), lexicon)) == Ahead.YES:
            return False
        self._context.calls.spoil()
        return True

    def _distrust(self, arguments: ArgumentsWriter, text: str) -> None:
        self._behind.append(text)
        arguments.distrust(text)

    def _read_value(self, name: str, arguments: ArgumentsWriter) -> Subroutine:
        tags = self._tags
        end = MisspeltEnd(tags.parameter_end, tags.parameter, name, self._frame_sink(arguments))
        try:
            marker = yield self._value(end.write, arguments)
        except Ended:
            end.end(is_closed=True)
            raise
        is_closed = marker not in (DONE, FORCED)
        is_broken = end.end(is_closed=is_closed)
        own_tags = tags.parameter.rstrip("=").partition(" ")[0], tags.parameter_end
        text = arguments.text
        head = text.lstrip()
        is_doubled = head.startswith(tags.parameter) and (
            head.removeprefix(tags.parameter).lstrip("\"'").startswith(name)
        )
        is_broken = is_broken or is_doubled or has_own_tags(text, *own_tags, is_closed=is_closed)
        if is_broken or _ATTRIBUTE.match(text) or self._swallows_end(text):
            self._context.calls.spoil()
        return marker

    def _swallows_end(self, text: str) -> bool:
        """Return True if a value ends with the end of a call that nothing in it opened."""
        end, call = self._tags.call_end, self._tags.call.rstrip("=").removesuffix(" name")
        return text.rstrip().endswith(end) and text.count(end) > text.count(call)

    def _frame_sink(self, arguments: ArgumentsWriter) -> TextSink:
        """Return a sink that drops the line breaks which the template writes inside the tags."""
        line, sink = self._tags.line, arguments.write
        if line or self._tags.may_line:
            sink = (LeadingBreak(line, sink) if line else OwnLines(sink)).write
        return sink

    def _value(self, sink: TextSink, arguments: ArgumentsWriter) -> CallValue:
        closing, words = self._closing(arguments)
        return CallValue(self._context.lexicon, closing, sink, self._context.calls, words)

    def _closing(
        self, arguments: ArgumentsWriter
    ) -> tuple[Closing, Mapping[str, Follow | None] | None]:
        """Return the tags that end a value, including the next parameter if the tool has it."""
        tags, lexicon = self._tags, self._context.lexicon
        closing: Closing = lexicon.remember((tags, self._context.sound), self._find_closing)
        if lexicon.is_token(tags.parameter):
            return closing, None
        names = arguments.properties.keys() - arguments.given
        forms = ("{}>", '"{}"', 'name="{}"', "name='{}'")
        next_words: Follow = {form.format(name): None for name in names for form in forms}
        nexts = dict.fromkeys(tags.next_parameters, next_words)
        return closing, {**closing.words, **nexts}

    def _find_closing(self) -> Closing:
        """Return the tags that end a value, with the line break before them."""
        tags, lexicon = self._tags, self._context.lexicon
        next_words = tags.after_parameter(lexicon)
        words: dict[str, Follow | None] = {}
        closing_words: set[str] = set()
        unfinished_words: dict[str, str] = {}
        for line in {"", tags.line_end or tags.line}:
            for word in lexicon.words(tags.parameter_end):
                if word == tags.parameter_end:
                    unfinished_words[line + word[:-1]] = word
                    words[line + word[:-1]] = _allow_drift(next_words)
                else:
                    words[line + word] = next_words
        for line in {"", "\n", tags.line_end or tags.line}:
            for word in lexicon.words(tags.call_end):
                words[line + word] = tags.after_call(lexicon)
                closing_words.add(line + word)
        call_ends = frozenset(closing_words)
        if not lexicon.is_token(tags.parameter):
            words |= {word: {} for word in tags.next_parameters}
            closing_words.update(tags.next_parameters)
        call, parameter = (lexicon.words(tag)[0] for tag in (tags.call, tags.parameter))
        words[call] = tags.any_head(lexicon)
        end: Follow = dict.fromkeys(lexicon.words(tags.call_end))
        next_parameter: Follow = {parameter: None}
        own_ends = words.keys() - closing_words - {call}
        closing = Closing(
            words,
            closing_words,
            unfinished=unfinished_words,
            call=call,
            call_ends=call_ends,
            parameter=parameter,
            pairs={
                word: _allow_drift(end) if word in unfinished_words else end for word in own_ends
            },
            nexts={
                word: _allow_drift(next_parameter) if word in unfinished_words else next_parameter
                for word in own_ends
            },
            frame=tags.frame(lexicon),
        )
        return self._outer_closing(closing)

    def _outer_closing(self, inner: Closing) -> Closing:
        """Add the marker tokens that may end a value without its own tag, or begin a quotation."""
        tags, lexicon = self._tags, self._context.lexicon
        if self._context.sound or not tags.section or not lexicon.is_token(tags.section_end):
            return inner
        end, start = lexicon.sign(tags.section_end), lexicon.sign(tags.section)
        outer: Mapping[str, Follow | None] = {end: tags.again(lexicon), start: {inner.call: None}}
        return replace(inner, words={**inner.words, **outer}, forced=(end,), nests=(start,))


def _allow_drift(next_words: Follow) -> Follow:
    """Allow a number or the parameter's name in a closing tag, which models sometimes add."""
    end: Follow = {">": next_words}
    return {">": next_words, "=": {NAME: end}, NAME: end}


_TYPES = {
    None: None,
    "true": STRING,
    "false": frozenset({"integer", "number", "boolean", "null", "object", "array"}),
}
