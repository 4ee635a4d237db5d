"""Values in sections that may hold several calls: what is quoted there, and what is a call."""

from __future__ import annotations

import re

import pytest

from tests.text.parsing.golden_corpus import formats, written_case
from tests.text.parsing.golden_reading import check_steps, readings
from tests.text.parsing.round_trip_writers import WRITTEN, Tagged, Within

pytestmark = pytest.mark.thorough

SEVERAL = ("minimax_m2", "deepseek_v32", "qwen3_coder", "mimo")
"""Formats whose sections may hold several calls."""
ALIKE = dict.fromkeys(("nemotron_v3", "step3p5", "qwen3_xml"), "qwen3_coder")
"""Parsers of the tags of another format."""
TAGS = {"qwen3_xml": ("<function=", "</function>", "<parameter=", "</parameter>")}
"""Tags that are tokens, beside those of the format."""
PARSERS = pytest.mark.parametrize("parser", SEVERAL)
ALL = (
    *(*SEVERAL, *ALIKE, "seed_oss", "dots", "step3", "minicpm5", "deepseek_v4", "deepseek_v41"),
    *("glm47", "hy_v3", "hy_v4", "solar_open2", "kimi_k3"),
)
"""Formats in which a value may hold the end of its call."""
TOKENS = ("step3", "hy_v4")
"""Formats whose markers are always tokens; those of all others may be text as well."""
ENDINGS = pytest.mark.parametrize(
    ("parser", "as_text"),
    [pytest.param(parser, False, id=f"{parser}-tokens") for parser in ALL]
    + [pytest.param(parser, True, id=f"{parser}-text") for parser in ALL if parser not in TOKENS],
)


class Writer:
    """Writes in one format."""

    def __init__(self, parser: str) -> None:
        self.parser, name = parser, ALIKE.get(parser, parser)
        form, written = formats()[name], WRITTEN[name]
        head, tags, tail = written.head.lstrip("\n"), written.one, written.tail
        if isinstance(tags, Within):
            head, tags, tail = head + tags.head, tags.one, tags.tail + tail
        assert isinstance(tags, Tagged)
        parameter = tags.parameter.replace("KIND", "string").replace("STRING", "true")
        tokens = sorted((*form.markers, *form.special, *TAGS.get(parser, ())), key=len)[::-1]
        marker = re.compile("|".join(map(re.escape, tokens)))
        self._head, self._begin, self._parameter, self.end, self._tail = (
            marker.sub(r"⟪\g<0>⟫", part) for part in (head, tags.head, parameter, tags.tail, tail)
        )

    def section(self, *parts: str) -> str:
        return f"{self._head}{''.join(parts)}{self._tail}"

    def call(self, name: str, **arguments: str) -> str:
        return self.begin(name, **arguments) + self.end

    def begin(self, name: str, **arguments: str) -> str:
        pairs = (
            self._parameter.replace("KEY", key).replace("VALUE", value)
            for key, value in arguments.items()
        )
        return self._begin.replace("NAME", name) + "".join(pairs)

    def open(self, name: str, key: str) -> str:
        """Opening tags alone."""
        return self.begin(name, **{key: "\0"}).partition("\0")[0]

    @property
    def whole_end(self) -> str:
        """End of the last value, of its call and of the section."""
        return self.section(self.open("city", "city"), "\0", self.close).partition("\0")[2]

    @property
    def close(self) -> str:
        return self._parameter.partition("VALUE")[2] + self.end

    def check(self, output: str, *calls: tuple, content: str = "", **options) -> None:
        wanted = [
            (name, *rest) if len(rest) == 2 else (name, *rest, "valid") for name, *rest in calls
        ]
        check_steps(written_case(self.parser, output, tuple(wanted), content, **options))


def plain(text: str) -> str:
    return text.replace("⟪", "").replace("⟫", "")


QUOTED = {
    "two-parameters": lambda w: f"see {w.call('write', path='a', text='b')} there",
    "in-a-row": lambda w: f"see {w.call('city', city='X')}{w.call('city', city='Y')} there",
    "at-the-end": lambda w: f"ends: {w.call('city', city='X')}",
    "opening-tags": lambda w: f"tag {w.open('city', 'city')} opens",
    "closing-tags": lambda w: f"tag {w.close} closes",
    "closing-tags-twice": lambda w: f"tag {w.close} or {w.close} closes",
    "closing-tags-then-a-call": lambda w: f"tag {w.close} of {w.call('city', city='X')} closes",
    "in-a-quoted-call": lambda w: f"a {w.call('write', text='b ' + w.call('ping') + ' c')} d",
}


@PARSERS
@pytest.mark.parametrize("quoted", QUOTED.values(), ids=QUOTED)
def test_a_value_may_quote_calls(parser, quoted):
    w = Writer(parser)
    value = quoted(w).strip()
    call = "write", {"path": "p", "text": plain(value)}
    w.check(w.section(w.call("write", path="p", text=value)), call)
    swapped = "write", {"text": plain(value), "path": "p"}
    w.check(w.section(w.call("write", text=value, path="p")), swapped)


@PARSERS
def test_a_call_behind_a_value_that_is_not_closed_is_never_valid(parser):
    w = Writer(parser)
    output = w.section(w.open("city", "city"), "Oslo\n", w.call("city", city="Rome"))
    for folded in readings(written_case(parser, output)):
        (call,) = folded.calls
        assert (call.name, str(call.outcome)) == ("city", "malformed")


@PARSERS
@pytest.mark.parametrize("lost", ["opening", "closing"])
def test_a_value_that_swallows_tags_for_want_of_another_is_never_valid(parser, lost):
    """The tag that opens the next call is missing; text stands behind the tag that ends a value."""
    w = Writer(parser)
    second = w.call("write", path="p", text="t")
    output = {
        "opening": w.section(w.call("city", city="Oslo"), second.removeprefix(w.begin("write"))),
        "closing": w.section(w.call("city", city="Oslo").replace(w.end, "x" + w.end)),
    }[lost]
    for folded in readings(written_case(parser, output)):
        assert str(folded.calls[0].outcome) == "malformed"


@ENDINGS
@pytest.mark.parametrize("last", ["text", "path"])
def test_a_value_may_quote_the_end_of_its_call(parser, as_text, last):
    w = Writer(parser)
    value = f"see {w.whole_end} there"
    arguments = {"path": "p", "text": value} if last == "text" else {"text": value, "path": "p"}
    output = w.section(w.call("write", **arguments))
    wanted = "write", arguments | {"text": plain(value)}
    w.check(plain(output) if as_text else output, wanted)


QUOTED_BEHIND = {
    "then-text": "see {end}{call} there",
    "at-the-end": "see {end}{call}",
    "two-calls": "see {end}{call}{call} there",
    "text-between": "see {end} of {call} there",
}


@ENDINGS
@pytest.mark.parametrize("form", QUOTED_BEHIND)
def test_a_call_quoted_behind_the_end_of_its_call_is_not_delivered(parser, as_text, form):
    """Where the quoted call's value might hold the last end, the call is malformed."""
    w = Writer(parser)
    quoted = w.section(w.call("city", city="rm"))
    value = QUOTED_BEHIND[form].format(end=w.whole_end, call=quoted)
    output = w.section(w.call("write", path="p", text=value))
    output += "\n" + w.section(w.call("city", city="Rome"))
    outcome = "valid" if form == "text-between" else "malformed"
    w.check(
        plain(output) if as_text else output,
        ("write", {"path": "p", "text": plain(value)}, outcome),
        ("city", {"city": "Rome"}),
    )


NAMES = ("files.read", "files.read_all", "files.read_all_lines")
"""Names of which each begins the next."""


@ENDINGS
@pytest.mark.parametrize("offered", [NAMES, NAMES[::-1]], ids=["short", "long"])
def test_names_that_begin_with_another_name(parser, as_text, offered):
    w = Writer(parser)
    properties = {key: {"type": "string"} for key in ("path", "path_to")}
    tools = {name: {"type": "object", "properties": properties} for name in offered}
    output = "\n".join(w.section(w.call(name, path_to="a", path="b")) for name in NAMES[::-1])
    calls = [(name, {"path_to": "a", "path": "b"}) for name in NAMES[::-1]]
    w.check(plain(output) if as_text else output, *calls, tools=tools)


@PARSERS
@pytest.mark.parametrize("opens", [True, False], ids=["parameter", "text"])
def test_a_closing_tag_behind_the_end_of_a_call_makes_it_malformed(parser, opens):
    w = Writer(parser)
    behind = w.close.removesuffix(w.end)
    behind += w.open("city", "x").removeprefix(w.begin("city")) if opens else "and so on"
    for folded in readings(written_case(parser, w.section(w.call("city", city="Oslo")) + behind)):
        assert str(folded.calls[0].outcome) == "malformed"
