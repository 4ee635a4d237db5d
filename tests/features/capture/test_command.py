"""``eaglegate capture``: statistics, export and import, deletion."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from eaglegate.features.capture import command
from eaglegate.features.capture.command import main
from eaglegate.features.capture.files import CaptureFolder
from eaglegate.features.capture.limits import CaptureLimits
from eaglegate.lab.measure import drafts_command, replay_command
from eaglegate.observability.captures.files import make_cipher, read_records, write_records
from eaglegate.observability.captures.record import format_record, parse_record
from tests.observability.captures.test_record import RECORD

SECOND = replace(RECORD, id="req-2", key="others", session="s2", session_id="s2", arrived=1.7e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "capture"
    path.mkdir()
    write_records(path / "a.jsonl", [RECORD, SECOND])
    write_records(path / "b.jsonl", [RECORD])
    return path


def test_statistics_count_by_slice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(folder)]) == 0
    head, row, _, endings = capsys.readouterr().out.splitlines()
    assert head.split()[2:] == ["requests", "sessions", "prompt", "output", "steps", "acceptance"]
    assert row.split() == ["tools", "0-512", "3", "2", "9", "15", "6", "2.500"]
    assert endings == "3 completed"


def test_show_prints_no_text_unless_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", str(folder)])
    out = capsys.readouterr().out
    assert "agents" in out and "Grüße" not in out
    main(["show", str(folder), "--text"])
    assert capsys.readouterr().out.count("Grüße") == 3


def test_a_mooncake_export_begins_at_zero_and_has_no_key_of_ours(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trace.jsonl"
    assert main(["export", str(folder), "--to", "mooncake", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["timestamp"] for row in rows] == [0.0, 250.0, 250.0]
    assert set(rows[0]) == {"timestamp", "session_id", "messages", "tools", "output_length"}
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_batch_comes_back_as_it_went(folder: Path, tmp_path: Path) -> None:
    batch, again = tmp_path / "batch.jsonl", tmp_path / "again.jsonl"
    assert main(["export", str(folder), "--to", "openai-batch", "--out", str(batch)]) == 0
    row = json.loads(batch.read_bytes().splitlines()[0])
    assert (row["custom_id"], row["url"]) == ("req-1", "/v1/chat/completions")
    assert main(["import", str(batch), "--out", str(again)]) == 0
    first = next(iter(read_records(again)))
    assert first.request_body() == RECORD.request_body() == row["body"]


def test_a_file_that_exists_is_not_overwritten(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    assert main(["export", str(folder), "--to", "mooncake", "--out", str(out)]) == 1
    assert f"{out} exists; name another --out" in capsys.readouterr().err
    assert main(["import", str(folder), "--out", str(out)]) == 1
    assert out.read_text() == "mine"


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_requests_of_a_key_are_deleted(tmp_path: Path, encrypted: bool) -> None:
    key = Fernet.generate_key().decode()
    cipher = make_cipher([key] if encrypted else [])
    named = tmp_path / "key"
    named.write_text(key)
    folder = tmp_path / "c"
    folder.mkdir()
    write_records(folder / "a.jsonl", [RECORD, SECOND], cipher)
    write_records(folder / "b.jsonl", [RECORD], cipher)
    options = ["--key-file", str(named)] if encrypted else []
    assert main(["delete", str(folder), "--key", "agents", *options]) == 0
    assert list(read_records(folder, cipher)) == [SECOND]
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]
    assert (folder / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_session_is_deleted(folder: Path) -> None:
    assert main(["delete", str(folder), "--session", "s1"]) == 0
    assert list(read_records(folder)) == [SECOND]


def read_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make_unreadable(folder: Path, kind: str) -> Path:
    """A folder whose second of three files cannot be read in part; the key file that is left."""
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    key_file = folder.parent / "key"
    key_file.write_text(new)
    folder.mkdir()
    for name in "abc":
        cipher = make_cipher([old if (name, kind) == ("b", "rotated") else new])
        write_records(folder / f"{name}.jsonl", [RECORD, SECOND], cipher)
    damaged = folder / "b.jsonl"
    if kind == "damaged":
        damaged.write_bytes(damaged.read_bytes()[:-9])
    if kind == "gzip":
        damaged.write_bytes(gzip.compress(damaged.read_bytes())[:-30])
    if kind == "empty":
        damaged.write_bytes(b"")
    return key_file


@pytest.mark.parametrize("kind", ["rotated", "damaged", "gzip"])
def test_parts_that_cannot_be_read_are_deleted_on_demand_and_nothing_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = tmp_path / "c"
    key_file = make_unreadable(folder, kind)
    command = ["delete", str(folder), "--key", "agents", "--key-file", str(key_file)]
    before = read_bytes(folder)
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "nothing was deleted" in said and "b.jsonl" in said and "--unreadable" in said
    assert "a.jsonl" not in said
    assert read_bytes(folder) == before
    assert main([*command, "--unreadable"]) == 0
    assert "unreadable parts deleted" in capsys.readouterr().err
    named: list[str] = []
    left = list(read_records(folder, make_cipher([key_file.read_text()]), named.append))
    assert left and all(record == SECOND for record in left) and not named


def test_an_empty_file_stops_no_deletion(tmp_path: Path) -> None:
    """A gateway has just begun it."""
    folder = tmp_path / "c"
    key_file = make_unreadable(folder, "empty")
    assert main(["delete", str(folder), "--key", "agents", "--key-file", str(key_file)]) == 0
    assert list(read_records(folder, make_cipher([key_file.read_text()]))) == [SECOND] * 2


def test_a_gzipped_file_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    write_records(path, [RECORD, SECOND], compress=True)
    assert main(["delete", str(tmp_path), "--key", "agents"]) == 0
    assert parse_record(gzip.decompress(path.read_bytes())) == SECOND


def test_a_file_that_becomes_unreadable_meanwhile_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that has read a new key file writes to it."""
    monkeypatch.setattr(command, "check_readable", lambda *_: None)
    folder = tmp_path / "c"
    key_file = make_unreadable(folder, "rotated")
    before = read_bytes(folder)
    assert main(["delete", str(folder), "--key", "agents", "--key-file", str(key_file)]) == 1
    assert "b.jsonl:1" in capsys.readouterr().err
    after = read_bytes(folder)
    assert after.keys() == before.keys() and after["b.jsonl"] == before["b.jsonl"]


def test_everything_is_deleted_with_the_salt(folder: Path) -> None:
    (folder / "salt").write_bytes(b"x" * 32)
    assert main(["delete", str(folder), "--all"]) == 0
    assert list(folder.iterdir()) == []


def test_deletion_under_a_writer_leaves_a_file_it_can_go_on_with(tmp_path: Path) -> None:
    writer = CaptureFolder(tmp_path, CaptureLimits())
    writer.append(format_record(RECORD) + b"\n")
    writer.append(format_record(SECOND) + b"\n")
    assert main(["delete", str(tmp_path), "--key", "agents"]) == 0
    writer.append(format_record(RECORD) + b"\n")
    assert sorted(record.id for record in read_records(tmp_path)) == ["req-1", "req-2"]


def test_an_encrypted_capture_without_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    write_records(path, [RECORD], make_cipher([Fernet.generate_key().decode()]))
    assert main(["stats", str(path)]) == 1
    assert "--key-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make_parser", "arguments"),
    [
        (drafts_command.make_parser, ["FILE", "--draft", "DRAFT", "--out", "OUT"]),
        (replay_command.make_parser, ["FILE", "--against", "http://localhost", "--out", "OUT"]),
    ],
)
def test_the_key_file_may_stand_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    make_parser: Callable[[], argparse.ArgumentParser],
    arguments: list[str],
) -> None:
    monkeypatch.setenv("EAGLEGATE_CAPTURE_KEY_FILE", "/keys")
    assert make_parser().parse_args(arguments).key_file == Path("/keys")
    assert make_parser().parse_args([*arguments, "--key-file", "/mine"]).key_file == Path("/mine")
