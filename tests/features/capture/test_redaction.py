"""A redacted capture holds no form of text that matches a pattern."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglegate.engine.events import Ending
from eaglegate.engine.types import EngineRequest, Sampling, Step
from eaglegate.features.capture.capture import EndedRequest, RecordFormatter
from eaglegate.features.capture.redaction import (
    GAPS,
    REDACTED,
    Redactor,
    SaltedHashes,
    load_salt,
)
from eaglegate.observability.captures.record import CaptureRecord, parse_record
from eaglegate.text.events import Phase

CARD = "4111222233334444"
SECRETS = {
    CARD: (r"\d{16}", r"^\d{16}$", r"\b\d{16}\b"),
    "Zür\U0001f600ich 8": ("Zür\U0001f600ich 8", r"^\w+\S+ch \d$", "(?i)zür.*8"),
}


def decode(token_ids: Sequence[int]) -> str:
    """Every token is a character."""
    return "".join(map(chr, token_ids))


def spell(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def make_ended(
    body: dict[str, Any] | None = None,
    prompt: str = "",
    answer: str = "",
    messages: Sequence[dict[str, Any]] = (),
    api: str = "chat",
    id: str = "req-1",
    sampling: Sampling | None = None,
) -> Any:
    """A request that ended; its body is JSON as a client might write it."""
    request = EngineRequest("0", spell(prompt), sampling or Sampling(max_tokens=9))
    facts = SimpleNamespace(
        id=id, api=api, model="demo", key=None, stream=False, template="", lane="",
        messages=messages, tools=(), prompt_tokens=len(prompt),
    )  # fmt: skip
    record = SimpleNamespace(
        facts=facts, slices=SimpleNamespace(labels=SimpleNamespace(workload="chat"), context=""),
        ending=Ending.COMPLETED, drafts=(), queued=None, ttft=None, duration=None,
        choices=(SimpleNamespace(finish="stop", tools=(), usage=None),),
    )  # fmt: skip
    timeline = SimpleNamespace(request=request, log=[(Phase.CONTENT, [Step(spell(answer))])])
    return EndedRequest(
        record, "session", (timeline,), "/v1/x", json.dumps(body or {}).encode(), 0.0, None
    )  # type: ignore[arg-type]


def write(patterns: Sequence[str], ended: Any, has_decoder: bool = True) -> bytes:
    redactor = Redactor.of(patterns, [])
    # The time limit has tests of its own. These must not depend on how busy the machine is.
    redactor.limit_s = 60.0
    redactor.decode = decode if has_decoder else None
    return RecordFormatter(SaltedHashes(b"s" * 32), redactor, None, 0.0).format(ended)


def capture(patterns: Sequence[str], **ended: Any) -> CaptureRecord:
    return parse_record(write(patterns, make_ended(**ended)))


def read_content(record: CaptureRecord) -> Any:
    assert record.messages is not None
    return record.messages[0]["content"]


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def texts_of(value: Any) -> list[str]:
    """Every text, key and number in it, and those of JSON within its texts."""
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts_of(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts_of(one)]
    if isinstance(value, float):
        return [str(value), str(int(value))]
    if not isinstance(value, str):
        return [str(value)]
    try:
        inner = orjson.loads(value)
    except orjson.JSONDecodeError:
        return [value]
    return [value, *texts_of(inner)] if inner != value else [value]


def forms_of(secret: str) -> list[str]:
    """The secret as it is, as JSON spells it, and as JSON within JSON spells it."""
    forms = [secret]
    for _ in range(2):
        forms.append(json.dumps(forms[-1])[1:-1])
    return forms


def assert_nothing_of(secret: str, written: bytes) -> None:
    row = json.loads(written)
    parts = re.findall(r'"text":"([^"]*)"', written.decode())
    digits = written.decode().replace(" ", "")
    for form in forms_of(secret):
        assert not any(form in text for text in texts_of(row))
        assert not any(form in gap.join(parts) for gap in GAPS)
        assert ",".join(map(str, spell(form))) not in digits


fill = st.text('ab .,\n"\\{}ü', max_size=6)


@st.composite
def hidden(draw: Any) -> tuple[str, str, Any]:
    """A pattern, what it matches, and a request that holds it in some form."""
    secret = draw(st.sampled_from(list(SECRETS)))
    pattern = draw(st.sampled_from(SECRETS[secret]))
    alone = pattern.startswith("^")
    before, after = ("", "") if alone else (draw(fill), draw(fill))
    if "\\b" in pattern:
        before, after = before + " ", " " + after
    text = before + secret + after
    arguments = {draw(st.sampled_from(["q", "n"])): text, "nested": [{"deep": text}]}
    at = draw(st.integers(0, len(text)))
    whole = [{"type": "text", "text": text}]
    cut = [
        {"type": "text", "text": text[:at]},
        {"type": "image"},
        {"type": "text", "text": text[at:]},
    ]
    number = int(secret) if secret == CARD else text
    call = {"function": {"name": "f", "arguments": json.dumps(arguments)}}
    plain = [{"role": "user", "content": "hello"}]
    tool = {"function": {"name": "f", "parameters": {"properties": {text: {}}, "const": number}}}
    ids = list(spell(text))
    forms: list[dict[str, Any]] = [
        {"body": user(text)},
        {"body": user("Result: " + json.dumps(arguments))},
        {"body": user(whole)},
        {"body": user(cut)},
        {"body": user([{"type": "tool_result", "content": whole}])},
        {"body": {"messages": plain, "tools": [tool]}},
        {"body": {"messages": [{"role": "assistant", "tool_calls": [call]}]}},
        {"body": {"messages": plain, "metadata": {text: number, "list": [number]}}},
        {"body": {"messages": plain, "user": text}},
        {"body": {"prompt": text}, "api": "completions"},
        {"body": {"prompt": ["hello", text]}, "api": "completions"},
        {"body": {"prompt": ids}, "api": "completions"},
        {"body": {"prompt": [[97, 98], ids]}, "api": "completions"},
        {"body": {"input": cut}, "messages": [user(text)["messages"][0]], "api": "responses"},
        {"body": {"messages": plain, "bad_words": [text]}},
        {"sampling": Sampling(max_tokens=9, bad_words=(text,))},
        {"prompt": f"user: {text}"},
        {"answer": text},
        {"answer": f'{{"arguments": {json.dumps(arguments)}}}'},
        {"answer": f"<call>{json.dumps(json.dumps(arguments))}</call>"},
    ]
    if text.isalnum():
        forms.append({"id": text})
    form = draw(st.sampled_from(forms))
    if alone and form.get("body") == user("Result: " + json.dumps(arguments)):
        form = forms[0]
    told = {"prompt": f"user: {text}", **form} if draw(st.booleans()) else form
    return pattern, secret, make_ended(**told)


@pytest.mark.thorough
@settings(max_examples=300)
@given(hidden(), st.booleans())
def test_no_form_of_a_secret_is_in_the_file(found: tuple[str, str, Any], has_decoder: bool) -> None:
    pattern, secret, ended = found
    assert_nothing_of(secret, write([pattern], ended, has_decoder))


@pytest.mark.parametrize(
    "body",
    [
        user(CARD),
        user([{"text": CARD[:5]}, {"text": CARD[5:]}]),
        {"messages": [], "metadata": {"card": int(CARD)}},
        {"messages": [], "metadata": {CARD: 1}},
    ],
)
def test_a_record_in_which_anything_was_found_keeps_no_ids(body: dict[str, Any]) -> None:
    """An anchored pattern does not match the prompt's text, nor do numbers written otherwise."""
    record = capture([r"^\d{16}$"], body=body, prompt="user: hello", answer="hello")
    assert record.redacted
    assert record.prompts[0].token_ids is None and record.choices[0].token_ids is None
    assert (record.prompts[0].tokens, record.choices[0].tokens) == (11, 5)


def test_ids_of_an_answer_that_is_found_are_left_out_of_the_prompt_too() -> None:
    record = capture(
        ["secret"], body={"prompt": [97]}, prompt="a", answer="secret", api="completions"
    )
    assert record.redacted and record.prompts[0].token_ids is None
    assert record.body == {"prompt": REDACTED} and record.input_length == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('Result: {"name": "Z\\u00fcrich"}', REDACTED),
        ('Result: {"name": "Z\\\\u00fcrich"}', REDACTED),
        (' {"name": "Z\\u00fcrich", "n": 1}', '{"name":"[redacted]","n":1}'),
        ('["Z\\u00fcrich", "b"]', '["[redacted]","b"]'),
        ('"in Z\\u00fcrich"', '"in [redacted]"'),
        ('{"name":  "Bern"}', '{"name":  "Bern"}'),
        ("C:\\\\users\\n", "C:\\\\users\\n"),
        ("Z\\u00fcrich or Zürich", REDACTED),
    ],
)
def test_escaped_spellings_are_redacted(content: str, expected: str) -> None:
    record = capture(["Zürich"], body=user(content))
    assert read_content(record) == expected
    assert record.redacted is (content != expected)


@pytest.mark.parametrize(
    "answer", ['{"a": "Z\\u00fcrich"}', r'"{\"a\": \"Z\\u00fcrich\"}"', "Zürich \\n"]
)
def test_answers_with_escaped_spellings_lose_their_tokens(answer: str) -> None:
    assert capture(["Zürich"], body=user("hello"), answer=answer).choices[0].token_ids is None


@pytest.mark.parametrize(
    ("escape", "meant"), [(r"\/", "/"), (r"\"", '"'), (r"\t", "\t"), (r"\b", "\b")]
)
def test_short_escapes_are_read(escape: str, meant: str) -> None:
    record = capture([f"a{meant}b"], body=user(f"is a{escape}b"))
    assert read_content(record) == REDACTED


def test_a_text_may_hold_what_only_looks_like_an_escape() -> None:
    assert capture([r"a\\nb"], body=user("hello"), answer=r"a\nb").choices[0].token_ids is None


@pytest.mark.parametrize(
    ("pattern", "number", "found"),
    [
        (r"^12345$", 12345.0, True),
        (r"^12345\.0$", 12345.0, True),
        (r"^0$", 0.5, False),
        ("x", 2**64 - 1, False),
        ("x", 2**64, True),
        ("(?i)true|none", True, False),
        ("(?i)true|none", None, False),
    ],
)
def test_numbers_are_looked_at_in_full(pattern: str, number: object, found: bool) -> None:
    record = capture([pattern], body=user("hello") | {"metadata": {"n": number}})
    assert record.redacted is found
    assert record.body == {"metadata": {"n": REDACTED if found else number}}


@pytest.mark.parametrize("gap", GAPS)
def test_parts_are_read_with_what_templates_put_between_them(gap: str) -> None:
    content = [{"text": "a"}, {"text": "bb"}, {"text": "a sec"}, {"text": "ret b"}, {"text": "c"}]
    parts = read_content(capture([f"sec{gap}ret"], body=user(content)))
    assert [part["text"] for part in parts] == ["a", "bb", REDACTED, REDACTED, "c"]


def test_a_part_of_its_own_is_not_replaced_whole() -> None:
    content = [{"text": "x red y"}, {"text": "other"}, {"text": "z"}]
    parts = read_content(capture(["red"], body=user(content)))
    assert [part["text"] for part in parts] == ["x [redacted] y", "other", "z"]


def test_a_prompt_of_ids_and_texts_is_left_out_where_a_text_is_found() -> None:
    body = {"prompt": [[97, 98], "the secret"]}
    record = capture(["secret"], body=body, prompt="ab", api="completions")
    assert record.body == {"prompt": REDACTED} and record.prompts[0].token_ids is None


@pytest.mark.parametrize("name", ["logit_bias", "bad_words", "stop_token_ids", "template"])
def test_hashes_hold_numbers_alone(name: str) -> None:
    """The sampling's words and token ids are left out: the metrics of a request would still spell
    them."""
    sampling = Sampling(
        max_tokens=9, top_k=3, bad_words=("zanzibar",), logit_bias={5: 1.0}, stop_token_ids=(5,)
    )
    formatter = RecordFormatter(SaltedHashes(b"s" * 32), None, None, 0.0)
    written = formatter.format(make_ended(body=user("hello"), sampling=sampling))
    assert b"zanzibar" not in written and name.encode() not in written
    assert parse_record(written).sampling == {"max_tokens": 9, "top_k": 3}


def test_hashes_of_prompts_tell_their_first_tokens_apart() -> None:
    hashes = SaltedHashes(b"s" * 32)
    assert hashes.hash_prompt([1, 2, 3]).blocks != hashes.hash_prompt([9, 2, 3]).blocks


def test_a_salt_of_another_length_is_refused(tmp_path: Path) -> None:
    assert load_salt(tmp_path) == load_salt(tmp_path)
    (tmp_path / "salt").write_bytes(b"s" * 31)
    with pytest.raises(OSError, match="32 bytes; it has 31"):
        load_salt(tmp_path)


def test_a_record_without_a_find_keeps_all() -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "metadata": {"a": [1, 2.5, None, True]},
        "temperature": 0.25,
        "max_tokens": 4096,
        "seed": 1234567890123456,
    }
    record = capture([r"\d{4}"], body=body, prompt="user: hello", answer="hi")
    assert not record.redacted
    assert record.request_body() == body
    assert record.prompts[0].token_ids == spell("user: hello")
    assert record.choices[0].token_ids == spell("hi")


def test_a_prompt_of_ids_is_kept_where_nothing_is_found() -> None:
    body = {"prompt": [[97, 98], [99]], "max_tokens": 5}
    record = capture(["secret"], body=body, prompt="ab", answer="c", api="completions")
    assert record.body == body and not record.redacted


def test_without_patterns_nothing_is_read() -> None:
    body = {"prompt": [97], "logit_bias": {"5": 1.0}}
    sampling = Sampling(max_tokens=9, stop_token_ids=(5,))
    ended = make_ended(body, prompt="a", answer="b", api="completions", sampling=sampling)
    record = parse_record(write([], ended, has_decoder=False))
    assert record.sampling["stop_token_ids"] == [5]
    assert record.prompts[0].token_ids == (97,) and record.choices[0].token_ids == (98,)
    assert record.body == body


def test_while_there_is_no_decoder_no_ids_are_kept() -> None:
    ended = make_ended(body={"prompt": [97]}, prompt="a", answer="b", api="completions")
    record = parse_record(write(["secret"], ended, has_decoder=False))
    assert record.prompts[0].token_ids is None and record.choices[0].token_ids is None
    assert record.body == {"prompt": REDACTED}


def test_single_ids_are_left_out_wherever_there_are_patterns() -> None:
    """Each of them may spell a whole word."""
    sampling = Sampling(
        max_tokens=9, logit_bias={5: 1.0}, allowed_token_ids=(5,), stop_token_ids=(5,), top_k=3
    )
    body = user("hello") | {"logit_bias": {"5": 1}, "allowed_token_ids": [5], "stop_token_ids": [5]}
    record = capture(["secret"], body=body, sampling=sampling)
    assert record.request_body() == user("hello")
    assert record.sampling == {"max_tokens": 9, "top_k": 3}


def test_object_keys_are_redacted() -> None:
    record = capture(["secret"], body=user("hello") | {"metadata": {"the secret": {"secret": 1}}})
    assert record.body == {"metadata": {"the [redacted]": {REDACTED: 1}}}


def test_only_the_parts_that_spell_it_are_replaced() -> None:
    content = [{"text": "hello "}, {"text": "sec"}, {"text": "ret"}, {"text": " there"}]
    record = capture(["secret"], body=user(content))
    assert record.messages is not None
    texts = [part["text"] for part in record.messages[0]["content"]]
    assert texts == ["hello ", REDACTED, REDACTED, " there"]


def test_whole_numbers_that_are_read_inexactly_are_left_out() -> None:
    """Their first digits would stay."""
    number = int("9" * 24)
    record = capture(["secret"], body=user("hello") | {"metadata": {"n": number, "m": 7}})
    assert record.redacted and record.body == {"metadata": {"n": REDACTED, "m": 7}}


@pytest.mark.parametrize("number", [-1234.5, 12345.0, 1e15])
def test_fractions_are_numbers(number: float) -> None:
    record = capture([r"\d{4}"], body=user("hello") | {"metadata": {"n": number}})
    assert record.body == {"metadata": {"n": REDACTED}}
