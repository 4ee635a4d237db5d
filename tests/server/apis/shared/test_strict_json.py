"""JSON that a parser might silently accept is refused with a reason."""

from __future__ import annotations

import json
import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.server.apis.shared.request import MAX_DEPTH, MAX_ITEMS, BadJSON, loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=30,
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model": "a", "model": "b"}', "'model' is given twice"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' is given twice"),
        (b'{"a": 1, "\\u0061": 2}', "'a' is given twice"),
        (rb'{"a": "x\"}", "a": 1}', "'a' is given twice"),
        (rb'{"a": "x\\", "a": "\\"}', "'a' is given twice"),
        (rb'{"a\"b": 1, "a\"b": 2}', "is given twice"),
        (b'{"a": %s}' % (b"1" * 60), "at most 40 digits|not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'{"a": 1e999}', "not valid JSON|too large"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "at most 40 digits|not valid JSON"),
        (b'{"a": 0.' + b"1" * 5000 + b"}", "too large or too long"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        ('{"a": 1}'.encode("utf-16"), "not valid JSON"),
        (b"", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"[" * 100 + b"]" * 100, "levels deep"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "levels deep"),
        (b"[" * 1_000_000, f"at most {MAX_ITEMS} values"),
        (b"[" + b"1," * 300_000 + b"1]", f"at most {MAX_ITEMS} values"),
    ],
)
def test_refused_in_words(body, words):
    with pytest.raises(BadJSON, match=words):
        loads(body)


def test_depth_is_counted_in_levels():
    assert loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(BadJSON, match="levels deep"):
        loads(b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2))


@given(VALUES)
def test_valid_json_is_read_unchanged(value):
    assert loads(orjson.dumps(value)) == orjson.loads(orjson.dumps(value))


@given(st.binary(max_size=200))
def test_nothing_else_comes_out_of_bytes(body):
    try:
        loads(body)
    except BadJSON as error:
        assert str(error)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"a": "b\": \"c", "d\\": ["\\\"", ":"]}',
        b'{"a": 1.5, "b": "1e999 ::::", "c": {"a": [{}, [], ""]}}',
    ],
)
def test_unusual_but_valid_json_is_read(body):
    assert loads(body) == json.loads(body)


def test_too_many_values_are_refused_before_any_is_made():
    for body in (b"[" + b"[]," * 2_600_000 + b"1]", b"{" + b'"a":1,' * 1_100_000 + b'"b":1}'):
        began = time.process_time()
        with pytest.raises(BadJSON, match="at most 200000 values"):
            loads(body)
        assert time.process_time() - began < 0.5
