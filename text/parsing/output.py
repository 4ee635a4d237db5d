"""Output of a routine: reasoning, content and tool calls, each with its own framing."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection

from eaglegate.text.events import Outcome, Phase, Repair, ToolCallEnd, ToolCallStart
from eaglegate.text.parsing.fold import Emitter
from eaglegate.text.parsing.json_repair import JsonRepair, find_missing
from eaglegate.text.parsing.reader import TextSink
from eaglegate.text.parsing.tools import FreeText, OfferedTools, ToolSchema, is_container

NewId = Callable[[], str]
TAIL = 40


def random_id() -> str:
    """Return an id in the form that clients of the OpenAI API know."""
    return f"call_{secrets.token_hex(12)}"


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_MAY_BE_FENCE = re.compile(r" {0,3}(?:`{0,2}|~{0,2}|`{3,}[^`]{0,99}|~{3,}.{0,99})\Z")


_TICKS = re.compile(r"`+|[^`]+")


class Fence:
    """Tracker of code fences, by CommonMark's rules, and of inline code.

    Inline code ends with its line: a lone backtick quotes nothing on later lines.
    """

    __slots__ = ("_begins_line", "_mark", "_num_open", "_num_ticks", "line")

    def __init__(self, mark: str = "") -> None:
        self._mark = mark
        self.line: str | None = ""
        """Last line, while it may be a fence; else None."""
        self._num_open = 0
        """Number of backticks that opened inline code on this line."""
        self._num_ticks = 0
        """Number of backticks at the end of the text."""
        self._begins_line = False
        """True if only white space precedes those backticks on their line."""

    @property
    def is_open(self) -> bool:
        return bool(self._mark)

    @property
    def is_inline(self) -> bool:
        """True if the text ends inside inline code."""
        return bool(self._settle_ticks())

    def concerns(self, text: str) -> bool:
        """Return True if ``write`` would change anything."""
        has_state = self.line is not None or self._num_ticks > 0
        return has_state or "`" in text or "\n" in text

    def copy(self) -> Fence:
        """Copy the fence without its unfinished line."""
        return Fence(self._mark)

    def write(self, text: str) -> None:
        first_line, *lines = text.split("\n")
        self._extend(first_line)
        for line in lines:
            self.end_line()
            self.line = ""
            self._extend(line)

    def _extend(self, text: str) -> None:
        if self._num_ticks or "`" in text:
            self._count_ticks(text)
        if self.line is not None:
            line = self.line + text
            self.line = line if _MAY_BE_FENCE.match(line) else None

    def _count_ticks(self, text: str) -> None:
        is_blank = self.line is not None and not self.line.strip()
        for match in _TICKS.finditer(text):
            if match[0][0] == "`":
                self._begins_line = self._begins_line if self._num_ticks else is_blank
                self._num_ticks += len(match[0])
            else:
                self._num_open, self._num_ticks = self._settle_ticks(), 0
            is_blank = is_blank and not match[0].strip()

    def _settle_ticks(self) -> int:
        """Return ``_num_open`` as it will be if no more backticks follow."""
        num, num_open = self._num_ticks, self._num_open
        # In a fence backticks are code, and three at the beginning of a line are a fence.
        if not num or self._mark or (num >= 3 and self._begins_line):
            return num_open
        # Only as many backticks as opened the code close it; others are part of it.
        return 0 if num == num_open else num_open or num

    def end_line(self) -> None:
        self._num_open = self._num_ticks = 0
        match = _FENCE.fullmatch(self.line or "")
        if match is None:
            return
        mark, info = match.groups()
        if not self._mark:
            self._mark = mark
        elif mark.startswith(self._mark) and not info.strip():
            self._mark = ""


class Framed:
    """Text without the white space that its template writes around it.

    Characters in ``lead`` are dropped at the beginning. Characters in ``trail`` are held back:
    more text releases them, a marker drops them. White space at the beginning is held back as
    well, because white space alone is not text.
    """

    __slots__ = (
        "_at_marker",
        "_break",
        "_dropped",
        "_emit",
        "_held",
        "_trail",
        "fence",
        "label",
        "lead",
        "tail",
        "written",
    )

    def __init__(self, emit: TextSink, lead: str = "", trail: str = "") -> None:
        self._emit = emit
        self._trail = trail
        self._held: list[str] = []
        self._at_marker = True
        self._dropped = self._break = ""
        self.lead = lead
        self.label = ""
        """Label that is dropped if the text begins with it."""
        self.tail = ""
        """Piece of text written last."""
        self.written = False
        self.fence = Fence()

    def write(self, text: str) -> None:
        # The separator waits for the next piece, which may begin with white space of its own.
        if self._break:
            text, self._break = ("" if text[:1].isspace() else self._break) + text, ""
        if self.fence.concerns(text):
            self.fence.write(text)
        self.tail = (self.tail + text)[-TAIL:]
        if not self.written:
            text = self._opening(text)
        body = text.rstrip(self._trail) if self._trail else text
        if body:
            if self._held:
                self._held.append(body)
                self._emit("".join(self._held))
                self._held.clear()
            else:
                self._emit(body)
            self._at_marker = False
        if body != text:
            self._held.append(text[len(body) :])

    def _opening(self, text: str) -> str:
        """Return the first piece that is not blank, with the blanks before it; "" until then."""
        # A label may come in pieces, so all text is held while it could still become one.
        if self.label:
            text = "".join([*self._held, text])
            self._held.clear()
            if self.label.startswith(text):
                self._held.append(text)
                return ""
            text, self.label = text.removeprefix(self.label), ""
        if not text.strip():
            self._held.append(text)
            return ""
        self.written = True
        text = "".join(self._held) + text
        self._held.clear()
        body = text.lstrip()
        return text[: len(text) - len(body)].lstrip(self.lead) + body

    def marker(self) -> None:
        """Record a marker: the white space before it was framing."""
        self._dropped = "".join(self._held)
        self._held.clear()
        self._at_marker = True

    def unmark(self, marker: str) -> None:
        """Write a marker as text after all, with the white space before it."""
        spaces, self._dropped = self._dropped, ""
        self.write(spaces + marker)

    def separate(self, text: str) -> None:
        """Begin another piece, separated by ``text`` unless white space separates them already."""
        if self.written and not self.tail[-1:].isspace():
            self._break = text

    def end(self) -> None:
        """End the output. White space after text is kept, after a marker it is dropped."""
        if self._held and not self._at_marker:
            self._emit("".join(self._held))
        self._held.clear()


class Calls:
    """Writer of one tool call after another. A routine opens, writes and closes each.

    For tools named in ``custom``, only the single argument is delivered, as text.
    """

    def __init__(
        self,
        out: Emitter,
        tools: OfferedTools,
        new_id: NewId,
        parallel: bool = True,
        custom: Collection[str] = (),
        repairs: bool = True,
    ) -> None:
        self._out = out
        self._tools = tools
        self._new_id = new_id
        self._parallel = parallel
        self._muted = False
        """True if calls are not delivered: ``parallel_tool_calls: false`` allows only the first."""
        self._custom = custom
        self.repairing = repairs
        """True if arguments with only one possible meaning are repaired."""
        self._repairs: list[Repair] = []
        self._raw: list[str] = []
        self._text: FreeText | None = None
        self._json: JsonRepair | None = None
        self.ids: set[str] = set()
        """Call ids used so far in this answer."""
        self._name = ""
        self._parts: list[str] = []
        self._spoiled = self._is_fragile = False
        self.num = 0
        """Number of calls opened so far, and the index of the next call."""
        self.open = False
        self.settled = False
        """True if the rest of the output is known, so that each later end of a call is one."""
        self.truncated = False
        """True if the output ended inside a call."""

    @property
    def tool(self) -> ToolSchema | None:
        """Offered tool that the open call names."""
        return self._tools.find(self._name)

    def find(self, name: str) -> ToolSchema | None:
        """Return the offered tool of that name."""
        return self._tools.find(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the offered tools, longest first; empty if the request names none."""
        return self._tools.names

    @property
    def written(self) -> bool:
        """True if the open call has arguments so far."""
        return any(self._parts)

    @property
    def arguments(self) -> str:
        """Arguments of the open call so far."""
        return "".join(self._parts)

    @property
    def is_bare(self) -> bool:
        """True if the open call's arguments are an object without members."""
        return self.arguments.strip() in ("", "{}")

    def begin(self, name: str, id: str | None = None) -> None:
        self.num += 1
        self._muted = not self._parallel and self.num > 1
        self.open, self._name = True, name
        self._parts, self._raw, self._repairs = [], [], []
        self._spoiled = self._is_fragile = False
        self._json = JsonRepair(self.write, self.repair) if self.repairing else None
        self._text = FreeText() if name in self._custom else None
        if not self._muted:
            custom = self._text is not None
            # A call of a tool that nobody offers may be text of the call before it.
            if self._tools.names and self._tools.find(name) is None:
                self._out.doubt_fragile()
            self._out.event(ToolCallStart(self.num - 1, self._unique(id), name, custom))

    def write(self, arguments: str) -> None:
        self._parts.append(arguments)
        if self._text is not None:
            arguments = self._text.write(arguments)
        if not self._muted:
            self._out.arguments(self.num - 1, arguments)

    def write_json(self, text: str) -> None:
        """Write a piece of arguments that the model writes as JSON, with repairs."""
        if self._json is None:
            self.write(text)
            return
        self._raw.append(text)
        self._json.write(text)

    def repair(self, repair: Repair) -> None:
        """Record a repair of the open call, once for each kind."""
        if repair not in self._repairs:
            self._repairs.append(repair)

    def keep_raw(self, text: str) -> None:
        """Keep the text that the model wrote, if a repair changes it."""
        self._raw.append(text)

    def spoil(self) -> None:
        """Mark the open call as ambiguous, so that it is not valid whatever its arguments are."""
        self._spoiled = True

    def rehearse(self, out: Emitter) -> Calls:
        """Return a writer for a text that is read on trial."""
        return Calls(out, self._tools, str, self._parallel, self._custom, self.repairing)

    def _deliver(self, text: str) -> None:
        if not self._muted:
            self._out.arguments(self.num - 1, text)

    def close(self, is_spoiled: bool = False, is_fragile: bool = False) -> None:
        """Finish the call. A call without any arguments gets ``{}``.

        ``is_spoiled``: a value was not closed by its own tag, so it may be incomplete.
        ``is_fragile``: the call lacks its end marker, so text after it may belong to it.
        """
        self._is_fragile = is_fragile
        self._flush()
        self._spoiled |= is_spoiled
        if not "".join(self._parts).strip():
            self.write("{}")
        outcome = self._judge()
        # Closing brackets would make a call of incomplete values valid.
        if outcome is Outcome.MALFORMED and self._raw and not self._spoiled:
            outcome = self._close_brackets()
        self._end(self._trust(outcome))

    def _judge(self) -> Outcome:
        return self._tools.judge(self._name, self._out.spell("".join(self._parts)))

    def _close_brackets(self) -> Outcome:
        """Write the brackets that malformed JSON lacks at the end of its call."""
        if missing_closers := find_missing("".join(self._parts)):
            self.repair(Repair.MISSING_BRACKET)
            self.write(missing_closers)
        return self._judge()

    def end(self, by_model: bool) -> None:
        """End the open call with the output. A name that ends the model's answer is a call."""
        if by_model and not self.written:
            self.close()
        else:
            self.truncate()

    def truncate(self) -> None:
        """End a call that the output cut short. If its arguments are complete, they count."""
        self._flush()
        arguments = self._out.spell("".join(self._parts))
        is_complete = is_container(arguments)
        self._end(self._trust(self._judge()) if is_complete else Outcome.TRUNCATED)

    def _trust(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or MALFORMED for an ambiguous call."""
        # An unknown tool is not run in any case, and says more about what went wrong.
        is_kept = not self._spoiled or outcome is Outcome.UNKNOWN_TOOL
        return outcome if is_kept else Outcome.MALFORMED

    def _flush(self) -> None:
        if self._json is not None:
            self._json.end()

    def _end(self, outcome: Outcome) -> None:
        self.open, self.truncated = False, outcome is Outcome.TRUNCATED
        if self._text is not None:
            self._deliver(self._text.end())
        self._parts = []
        if not self._muted:
            source = self._out.spell("".join(self._raw)) if self._repairs else None
            end = ToolCallEnd(self.num - 1, outcome, tuple(self._repairs), source)
            # These repairs guess where the call ends: text after it may belong to it.
            closing = {Repair.MISSING_BRACKET, Repair.TRAILING_COMMA}.intersection(self._repairs)
            is_fragile = self._is_fragile or bool(closing)
            self._out.hold(end, is_fragile)

    def doubt(self) -> None:
        """Doubt the last call: the text after it shows that the call was misread."""
        if not self._muted:
            self._out.doubt()

    def _unique(self, id: str | None) -> str:
        """Return the model's own id, or a new one if this answer has used it already."""
        call_id = self._new_id() if id is None or id in self.ids else id
        self.ids.add(call_id)
        return call_id


class Output:
    """The three outputs of a routine, and the one that it is writing to."""

    def __init__(self, out: Emitter, calls: Calls, thinking: str = "", framing: str = "") -> None:
        self._framing = thinking, framing
        self.reasoning = Framed(out.reasoning, thinking, thinking)
        self.content = Framed(out.content, trail=framing)
        self.calls = calls
        self.drain = out.drain
        self.release = out.release
        self.phase = Phase.CONTENT
        self.framed = False
        """True if the answer after the thinking began with a marker of its own."""

    def rehearse(self) -> Output:
        """Return an empty output for a text that is read on trial."""
        out = Emitter()
        return Output(out, self.calls.rehearse(out), *self._framing)
