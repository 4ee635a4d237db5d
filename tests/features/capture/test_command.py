"""``eaglegate capture``: statistics, export and import, deletion; audits beside their records."""

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
from eaglegate.features.capture.audits import (
    CapturedAudit,
    format_audit,
    parse_audit,
    read_audits,
)
from eaglegate.features.capture.command import main
from eaglegate.features.capture.files import CaptureFolder
from eaglegate.features.capture.limits import CaptureLimits
from eaglegate.lab.measure import drafts_command, replay_command
from eaglegate.observability.captures.files import (
    make_cipher,
    read_records,
    write_lines,
    write_records,
)
from eaglegate.observability.captures.record import (
    CaptureError,
    DamagedRecord,
    format_record,
    parse_record,
)
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


AUDIT = CapturedAudit(
    id=RECORD.id,
    session=RECORD.session,
    choice=0,
    outcome="violated",
    choosing="greedy",
    detail="token 1 is wrong",
    depth=3,
    draft="abc",
    tokens=9,
    at=1.7e9,
    key=RECORD.key,
)
OTHER = CapturedAudit(
    SECOND.id, SECOND.session, 1, "lossless", "seeded", "", 3, "abc", 4, 1.7e9, SECOND.key
)


def make_folder(path: Path, key: str | None = None) -> Path:
    cipher = make_cipher([key] if key else [])
    path.mkdir()
    write_records(path / "capture-a.jsonl", [RECORD, SECOND], cipher)
    write_records(path / "capture-b.jsonl", [RECORD], cipher)
    write_lines(path / "audits-a.jsonl", map(format_audit, [AUDIT, OTHER]), cipher, False)
    return path


def test_a_line_comes_back_and_a_damaged_one_is_named() -> None:
    assert parse_audit(format_audit(OTHER)) == OTHER
    for line in (b"{", b"[]", b'{"id": "a"}'):
        with pytest.raises(DamagedRecord):
            parse_audit(line)
    with pytest.raises(CaptureError, match="update eaglegate"):
        parse_audit(json.dumps({"version": 99}).encode())


def test_audits_are_no_records_and_are_shown_with_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "c")
    assert list(read_records(folder)) == [RECORD, SECOND, RECORD]
    assert list(read_audits(folder)) == [AUDIT, OTHER]
    assert main(["show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.rpartition("audit: ")[2] for line in lines]
    assert shown == ["violated", "lossless", "violated"]
    assert all(" workload " in line and " session " in line and " key " in line for line in lines)


@pytest.mark.parametrize("key", [None, Fernet.generate_key().decode()], ids=["plain", "encrypted"])
def test_requests_are_deleted_with_their_audits(tmp_path: Path, key: str | None) -> None:
    folder, named = make_folder(tmp_path / "c", key), tmp_path / "key"
    named.write_text(key or "")
    options = ["--key-file", str(named)] if key else []
    cipher = make_cipher([key] if key else [])
    assert main(["delete", str(folder), "--session", RECORD.session, *options]) == 0
    assert list(read_records(folder, cipher)) == [SECOND]
    assert list(read_audits(folder, cipher)) == [OTHER]
    assert {path.name for path in folder.iterdir()} == {"capture-a.jsonl", "audits-a.jsonl"}
    assert (folder / "capture-a.jsonl").stat().st_mode & 0o777 == 0o600
    assert main(["delete", str(folder), "--key", str(SECOND.key), *options]) == 0
    assert not list(folder.iterdir())


def test_nothing_is_deleted_while_an_audit_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "c")
    with (folder / "audits-a.jsonl").open("ab") as file:
        file.write(b"{damaged\n")
    assert main(["delete", str(folder), "--session", RECORD.session]) == 1
    assert "audits-a.jsonl:3" in capsys.readouterr().err
    assert list(read_records(folder)) == [RECORD, SECOND, RECORD]
    assert main(["delete", str(folder), "--session", RECORD.session, "--unreadable"]) == 0
    assert list(read_audits(folder)) == [OTHER]


def test_all_files_go_together_with_the_salt(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "c")
    (folder / "salt").write_bytes(b"x" * 32)
    assert main(["delete", str(folder), "--all"]) == 0
    assert not list(folder.iterdir())
