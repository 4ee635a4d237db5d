"""Audits of captured requests: files beside the records, which are read and deleted with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from eaglegate.features.capture.audits import (
    CapturedAudit,
    format_audit,
    parse_audit,
    read_audits,
)
from eaglegate.features.capture.command import main
from eaglegate.observability.captures.files import (
    make_cipher,
    read_records,
    write_lines,
    write_records,
)
from eaglegate.observability.captures.record import CaptureError, DamagedRecord
from tests.features.capture.test_command import SECOND
from tests.observability.captures.test_record import RECORD

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
    assert list(read_records(folder)) == [RECORD, SECOND]
    assert list(read_audits(folder)) == [AUDIT, OTHER]
    assert main(["show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("audit: ")[2] for line in lines] == ["violated", "lossless"]
    assert all(" workload " in line and " session " in line and " key " in line for line in lines)


@pytest.mark.parametrize("key", [None, Fernet.generate_key().decode()], ids=["plain", "encrypted"])
def test_audits_are_deleted_with_their_requests(tmp_path: Path, key: str | None) -> None:
    folder, named = make_folder(tmp_path / "c", key), tmp_path / "key"
    named.write_text(key or "")
    options = ["--key-file", str(named)] if key else []
    assert main(["delete", str(folder), "--session", RECORD.session, *options]) == 0
    assert list(read_audits(folder, make_cipher([key] if key else []))) == [OTHER]
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
    assert list(read_records(folder)) == [RECORD, SECOND]
    assert main(["delete", str(folder), "--session", RECORD.session, "--unreadable"]) == 0
    assert list(read_audits(folder)) == [OTHER]


def test_all_files_go_together(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "c")
    assert main(["delete", str(folder), "--all"]) == 0
    assert not list(folder.iterdir())
