"""Lark grammars and regular expressions, held against xgrammar with a vocabulary of bytes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglegate.text.grammars.lark_grammar import lark_grammar, regex_grammar
from eaglegate.text.grammars.text_grammar import BadGrammar, TextGrammar

PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?

hunk: add | remove  // two kinds
add: "*** Add File: " name LF line+
remove: "*** Delete File: " name LF
name: /(.+)/
line: "+" /(.*)/ LF -> added

%import common.LF
"""
ADDED = '*** Begin Patch\n*** Add File: a.py\n+print("größe \\n")\n+\n*** End Patch'
SUMS = r"""
?start: start "+" term | term
?term: term "*" factor | factor
factor: NUMBER | "(" start ")"
%import common (NUMBER, WS)
%ignore WS
"""


@pytest.fixture(scope="module")
def accepts():
    xgrammar = pytest.importorskip("xgrammar")
    info = xgrammar.TokenizerInfo(
        [bytes([at]) for at in range(256)] + [b""],
        vocab_type=xgrammar.VocabType.RAW,
        stop_token_ids=[256],
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def accepts(ebnf: str, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(ebnf))
        return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(
            256
        )

    return accepts


def both(accepts, grammar: TextGrammar, text: str) -> bool:
    """Whether the text matches; written in JSON it must be the same."""
    plain = accepts(grammar.ebnf(in_json=False), text)
    inside = json.dumps(text, ensure_ascii=False)[1:-1]
    assert accepts(grammar.ebnf(in_json=True), inside) is plain
    return plain


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        (ADDED, True),
        (ADDED + "\n", True),
        (ADDED.replace("+print", "print"), False),
        (ADDED.replace("a.py", ""), False),
        ("*** Begin Patch\n*** Delete File: x\n*** End Patch", True),
        ("*** Begin Patch\n*** End Patch", False),
    ],
)
def test_a_patch(accepts, text, matches):
    assert both(accepts, lark_grammar(PATCH), text) is matches


@pytest.mark.parametrize(
    ("text", "matches"),
    [("1+2*(3+4)", True), (" 1 +\n2.5e3 ", True), ("1+", False), ("", False), ("1 2", False)],
)
def test_left_recursion_and_what_is_ignored(accepts, text, matches):
    assert both(accepts, lark_grammar(SUMS), text) is matches


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('start: "a"i~2..3', ["aA", "aaa"], ["a", "aaaa"]),
        ('start: "a"~2', ["aa"], ["a", "aaa"]),
        ('start: ["a"] ("b" | "c")*', ["", "abcb", "c"], ["aa"]),
        ('start: "a".."c"+', ["abc"], ["d", ""]),
        ("start: /a.c/is", ["AxC", "a\nc"], ["ac"]),
        (r"start: /a\/b/", ["a/b"], ["a\\/b"]),
        (r'start: "\"\\\t\u00e9"', ['"\\\té'], ['"']),
        ('start: A\nA: B "x" | B\nB: "b"', ["bx", "b"], ["x"]),
        ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", ['"a\\"b"'], ['"', '"a\nb"']),
        ("start: N\n%import common.SIGNED_FLOAT -> N", ["-1.5e3", "+.5"], ["1", "a"]),
        ("start: C_COMMENT\n%import common.C_COMMENT", ["/* a * b */", "/***/"], ["/* */ */"]),
        ('start: | "a"', ["", "a"], ["aa"]),
        ('start.2: "a" -> one', ["a"], ["b"]),
        ('!start: _x\n_x: "a"', ["a"], [""]),
    ],
)
def test_lark_grammars_accept_their_texts(accepts, grammar, yes, no):
    made = lark_grammar(grammar)
    assert [text for text in yes if not both(accepts, made, text)] == []
    assert [text for text in no if both(accepts, made, text)] == []


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("", "no rule 'start'"),
        ("start:: x", "line 1, column 7"),
        ("start: other", "no rule 'other'"),
        ("start: start", "no text matches"),
        ("start: /[^\\x00-\\U0010ffff]/", "no text matches"),
        ('start: "a"\nstart: "b"', "twice"),
        ("start: x{A}\nx{y}: y", "templates"),
        ("start: A\n%declare A", "%declare"),
        ('start: "a"\n%override start: "b"', "%override"),
        ("start: x\n%import .secret.x", "imports"),
        ("start: A\n%import python.A", "imports"),
        ("start: A\n%import common.NOTHING -> A", "imports"),
        ('start: "a"~3..2', "repetition"),
        ('start: "b".."a"', "range"),
        (r'start: "\x"', "bad escape"),
        ("start: /(?=a)b/", "lookahead"),
        ("start: /a(/", "not a valid regular expression"),
        ("start: " + '("a" ' * 60 + '"a"' + ")?" * 60, "too deeply"),
        ("start: " + '("a" ' * 3000 + '"a"' + ")?" * 3000, "too deeply"),
    ],
)
def test_unsupported_lark_grammars_are_refused_with_a_reason(grammar, why):
    with pytest.raises(BadGrammar, match=re.escape(why)):
        lark_grammar(grammar)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"a(?!b)", "lookahead"),
        (r"(?<=a)b", "lookbehind"),
        (r"(a)\1", "a reference to a group"),
        (r"a\b", "anchor"),
        (r"a$|b", "anchor"),
        (r"a*+", "possessive"),
        (r"(?>a)", "atomic"),
        (r"[", "not a valid regular expression"),
        (r"\p{L}", "not a valid regular expression"),
        (r"a{9999999999999}", "not a valid regular expression"),
        (r"(" * 101 + ")" * 101, "too deeply"),
        (r"(" * 5000 + ")" * 5000, "too deeply"),
    ],
)
def test_irregular_patterns_are_refused_with_a_reason(pattern, why):
    with pytest.raises(BadGrammar, match=why):
        regex_grammar(pattern)


PATTERNS = [
    r"^[a-c]+$",
    r'"[^"\\]*"',
    r"\A\d{2,3}[.,]?\w*\Z",
    r"(?i)straße|[k-m]",
    r"(?i:a)b",
    r"[^\n]+\n?",
    r".*?x",
    r"(?s).",
    r"\S\s\W\D",
    r"[\x00-\x1f]{1,2}",
    r"[\]\-^\\]+",
    r"(a|b|)c{0,2}",
    r"[^k](?P<n>é+)",
]
TEXTS = st.text(st.sampled_from('abckKéßx01.,_-^]"\\\n\t\x01\x1f 😀\x7f'), max_size=5)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regular_expression_matches_what_python_matches(accepts, pattern):
    grammar = regex_grammar(pattern)
    ascii_too = re.compile(pattern, re.ASCII if "ß" not in pattern else 0)

    @settings(max_examples=60)
    @given(TEXTS)
    def matches(text):
        assert both(accepts, grammar, text) is (ascii_too.fullmatch(text) is not None)

    matches()
