"""Patterns of the redaction: what they mean, which are refused, and how long they take."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from eaglegate.features.capture.files import RecordDropped
from eaglegate.features.capture.patterns import compile_pattern
from eaglegate.features.capture.redaction import REDACTED, Redactor
from eaglegate.features.capture.settings import CaptureSettings
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError

EMAIL = r"[\w.+-]+@[\w-]+\.[\w.]+"


def begin(*patterns: str, **changes: object) -> Redactor:
    redactor = Redactor.of(patterns, [])
    for name, value in changes.items():
        setattr(redactor, name, value)
    redactor.begin()
    return redactor


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (EMAIL, "to jörg.müller@example.com, please", "to [redacted], please"),
        (r"\d{4}", "in the year ٢٠٢٦", "in the year [redacted]"),
        (r"^\w+$", "Zürich", REDACTED),
        (r"^\w+$", "Zürich\n", REDACTED),
        (r"^\w+$", "in Zürich", "in Zürich"),
        (r"\AZürich\Z", "Zürich", REDACTED),
        (r"(?m)^key .*$", "one\nkey two\nthree", "one\n[redacted]\nthree"),
        (r"a\sb", "a\u00a0b", REDACTED),
        (r"[^\s]+:\S+", "x a:b y", "x [redacted] y"),
        (r"[[:alpha:]\d]+!", "a1!", REDACTED),
        (r"[]\d]x", "]x", REDACTED),
        (r"[^]\d]y", "]y 3y ay", "]y 3y [redacted]"),
        (r"[^\d]y$", "1y ay", "1y [redacted]"),
        (r"[\]\w]+!", "]é!", REDACTED),
        (r"[\\w]", "aw\\", "a[redacted]"),
        (r"[\p{Lu}\d]+#", "ÄÖ٣#", REDACTED),
        (r"\p{Lu}+#", "äÖ#", "ä[redacted]"),
        (r"[$]$", "$5$", "$5[redacted]"),
        (r"\Qa.b\E", "a.b axb", "[redacted] axb"),
        (r"[$^]5", "$5 or ^5", "[redacted] or [redacted]"),
        (r"\$\d", "$5", REDACTED),
        (r"(?i)straSSe", "Strasse", REDACTED),
    ],
)
def test_patterns_mean_what_python_means(pattern: str, text: str, expected: str) -> None:
    assert begin(pattern).redact(text) == expected


def test_matches_that_touch_are_replaced_once() -> None:
    assert begin("[a-z]").redact("1ab2") == "1[redacted]2"


def test_an_empty_match_is_no_find() -> None:
    redactor = begin(r"\b|x+")
    assert redactor.redact("ab") == "ab" and not redactor.has_match


def test_overlapping_matches_are_replaced_once() -> None:
    redactor = begin("zanzibar", "bar[0-9]+", "red")
    assert redactor.redact("a zanzibar12, b") == "a [redacted], b"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing )"),
        (r"(?=secret)", "invalid perl operator"),
        (r"(a)\1", "invalid escape"),
        (r"[.-\w]", "invalid"),
        ("a*", "matches the empty string"),
        ("^$", "matches the empty string"),
        (r"\bÖsterreich", "ASCII"),
    ],
)
def test_a_pattern_that_cannot_be_taken_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|empty string|ASCII") as refused:
        compile_pattern(pattern)
    assert why in str(refused.value) and f"'{pattern}'" in str(refused.value)


def test_other_threads_run_while_a_pattern_is_searched_for() -> None:
    """This text would take Python's own regular expressions days."""
    redactor = begin(EMAIL, limit_s=60.0)
    done = threading.Event()

    def search() -> None:
        for _ in range(20):
            redactor.redact("a" * 3_200_000)
        done.set()

    thread = threading.Thread(target=search)
    thread.start()
    turns = 0
    while not done.is_set():
        turns += 1
        time.sleep(0)
    thread.join()
    assert turns > 20


def test_a_record_that_takes_too_long_is_dropped() -> None:
    """``a.*z`` looks at all that follows for each of the letters."""
    with pytest.raises(RecordDropped, match="than 50 ms") as dropped:
        begin("a.*z|a").redact("a" * 200_000)
    assert dropped.value.reason == "slow"


def test_many_small_texts_take_time_as_well() -> None:
    seconds = iter(range(1000))
    redactor = begin("x", limit_s=100.0, clock=lambda: float(next(seconds)))
    assert redactor.redact(["y"] * 20) == ["y"] * 20
    with pytest.raises(RecordDropped):
        redactor.redact(["y"] * 500)


def test_time_begins_anew_with_each_record() -> None:
    now = 0.0
    redactor = begin("x", clock=lambda: now)
    for _ in range(3):
        redactor.begin()
        now += 0.04
        assert redactor.redact("x") == REDACTED


def test_the_last_moment_is_in_time() -> None:
    now = 0.0
    redactor = begin("x", limit_s=1.0, clock=lambda: now)
    now = 1.0
    assert redactor.redact("x") == REDACTED


def test_the_time_that_decoding_takes_is_not_that_of_the_patterns() -> None:
    now = 0.0

    def decode(_: object) -> str:
        nonlocal now
        now += 10.0
        return "y"

    now = 5.0
    redactor = begin("x", clock=lambda: now, decode=decode)
    redactor.read([1])
    redactor.read([2])
    assert redactor.keeps_ids
    now += 0.1
    with pytest.raises(RecordDropped):
        redactor.read([3])


def test_patterns_are_checked_with_the_command_line(tmp_path: Path) -> None:
    line = ["model", "--upstream", "http://127.0.0.1:9", "--capture", str(tmp_path)]
    with pytest.raises(ConfigError, match=r"--capture-redact .* RE2"):
        read_command_line("serve", [*line, "--capture-redact", "(?=x)"], lambda _: None)


def test_patterns_need_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert CaptureSettings(capture=str(tmp_path)).is_on
    with pytest.raises(ConfigError, match=r"--capture-redact .* pip install '.\[re2\]'"):
        CaptureSettings(capture=str(tmp_path), capture_redact=("secret",))
