"""YAML files are read within limits, and every fault is one exception of one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglegate.engine import bounded_yaml
from eaglegate.engine.bounded_yaml import MAX_BYTES, MAX_DEPTH, InvalidYaml, parse_yaml, read_yaml

BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{last}'] * 9)}]\n"
    for last, name in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{last}'] * 9)}]}}\n"
    for last, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 5000, "nested"),
        ("[" * (MAX_BYTES - 1), "nested"),
        ("{a: " * 5000, "nested"),
        ("- " * 5000, "nested"),
        ("&a {x: *a}", "nested"),
        ("&a [*a]", "nested"),
        (BOMB, "values, aliases included"),
        (MERGES, "values, aliases included"),
        ("a: 1\nexpires: 2027-02-30", "line 2, column 10: the value does not fit its type"),
        ('!!int ""', "does not fit its type"),
        ("!!bool x", "does not fit its type"),
        ("!!timestamp x", "does not fit its type"),
        ("9" * 5000, "does not fit its type"),
        ("host: x\nport: [1\n", "line 3, column 1: expected ',' or ']'"),
        ("\x00", "special characters"),
    ],
    ids=range(15),
)
def test_faults_are_named(text: str, words: str) -> None:
    with pytest.raises(InvalidYaml, match=words) as refusal:
        parse_yaml(text)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment", None),
        ("a: &x {k: 1}\nb: {<<: *x, l: 2}", {"a": {"k": 1}, "b": {"k": 1, "l": 2}}),
        ("[" * 5 + "]" * 5, [[[[[]]]]]),
    ],
    ids=["empty", "comment", "aliases", "nested"],
)  # fmt: skip
def test_ordinary_files_are_read(text: str, value: object) -> None:
    assert parse_yaml(text) == value


def test_the_deepest_file_is_read() -> None:
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(InvalidYaml):
        parse_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


def test_values_stay_out_of_errors() -> None:
    for tag in ("bool", "int", "float", "timestamp"):
        with pytest.raises(InvalidYaml) as refusal:
            parse_yaml(f"sha256: !!{tag} secret")
        assert "secret" not in str(refusal.value)


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidYaml, match=f"more than {MAX_BYTES} bytes"):
        read_yaml(Path("/dev/zero"))


def test_the_largest_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_yaml, "MAX_BYTES", 4)
    file = tmp_path / "file.yaml"
    file.write_text("a: 1")
    assert read_yaml(file) == {"a": 1}
    file.write_text("a: 12")
    with pytest.raises(InvalidYaml):
        read_yaml(file)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(b"a: \xff")
    with pytest.raises(InvalidYaml, match="utf-8"):
        read_yaml(file)
