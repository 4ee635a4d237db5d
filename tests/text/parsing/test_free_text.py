"""The text of a custom tool's call, out of the JSON around it."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eaglegate.text.parsing.markers import FRAGMENT
from eaglegate.text.parsing.tools import FreeText


def read(arguments: str, cuts: list[int]) -> str:
    text, out, at = FreeText(), "", 0
    for cut in [*sorted(set(cuts)), len(arguments)]:
        out += text.write(arguments[at:cut])
        at = max(at, cut)
    return out + text.end()


characters = st.characters(exclude_categories=["Cs"])


@given(
    st.text(st.one_of(st.sampled_from('"\\/\n\tu0d8'), characters)),
    st.booleans(),
    st.lists(st.integers(0, 60)),
)
@example("\U0001f600\\ud83d", True, list(range(60)))
@example('\\"', False, list(range(60)))
def test_free_text_is_restored_for_every_cut(text: str, ascii_: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_)
    assert read(arguments, cuts) == text


@given(st.text(st.sampled_from('{}"\\:,u0123dDfF8 xinput\n')), st.lists(st.integers(0, 80)))
@example('\\ud83d\\u00e9"', [9])
@example("\\ud83d\\", [8])
def test_the_cuts_make_no_difference_to_anything(body: str, cuts: list[int]) -> None:
    for arguments in (body, '{"input": "' + body):
        assert read(arguments, cuts) == read(arguments, [])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input":"a"}', "a"),
        (' {\n "input" : "a\nb"\n}', "a\nb"),
        ('{"input": "a", "input": "b"}', "a"),
        ('{"why": 1, "input": "late \\u00e9"}', "late é"),
        ('{"input": ["no text"]}', '{"input": ["no text"]}'),
        ("ls -l", "ls -l"),
        ("{}", ""),
        ("[]", "[]"),
        ("", ""),
        ('{"input": "\\d+ \\u12 \\x"}', "\\d+ \\u12 \\x"),
        ('{"input": "\\ud83d alone \\ude00"}', "� alone �"),
        ('{"input": "cut \\u00', "cut "),
        ('{"input": "cut', "cut"),
        ('{"inp', '{"inp'),
    ],
)
def test_other_shapes(arguments: str, expected: str) -> None:
    assert read(arguments, []) == expected
    assert read(arguments, list(range(len(arguments)))) == expected


@pytest.mark.parametrize("head", ['{"input": "', '{"why": 1, "input": "'])
def test_a_fragment_stays_and_half_a_pair_does_not(head: str) -> None:
    """A lone surrogate stands for a token until the text is spelled out; no other may get out."""
    assert read(f'{head}a{FRAGMENT}b"}}', [13, 14]) == f"a{FRAGMENT}b"
    for escape in ("\\udc00", "\\ud800", "\\uDFFF"):
        assert read(f'{head}a{escape}b"}}', [14, 17]) == "a�b"


def test_free_text_is_delivered_as_it_is_written() -> None:
    text = FreeText()
    pieces = [
        text.write(piece) for piece in ('{"input"', ': "ab', "c\\", "n", "\\ud83d", "\\ude00", '"}')
    ]
    assert pieces == ["", "ab", "c", "\n", "", "😀", ""]
    assert text.end() == ""
