"""The capture format: what AIPerf reads, and files cut anywhere."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from eaglegate.observability.captures import files
from eaglegate.observability.captures.files import make_cipher, read_records, write_records
from eaglegate.observability.captures.record import (
    OURS,
    CapturedChoice,
    CapturedPrompt,
    CapturedStep,
    CaptureError,
    CaptureRecord,
    coarsen,
    format_record,
    parse_record,
)

pytestmark = pytest.mark.thorough

RECORD = CaptureRecord(
    timestamp=1250.5,
    session_id="s1",
    messages=({"role": "user", "content": "Grüße \u2028 an alle"},),
    tools=({"type": "function", "function": {"name": "f"}},),
    output_length=5,
    session="s1",
    id="req-1",
    arrived=1_700_000_000.25,
    body={"model": "demo", "temperature": 0},
    model="demo",
    key="agents",
    stream=True,
    workload="tools",
    context="0-512",
    lane="speculative",
    depth=3,
    draft="abc",
    ending="completed",
    sampling={"temperature": 0.0, "max_tokens": 64},
    prompts=(CapturedPrompt(3, (1, 2, 3)),),
    choices=(
        CapturedChoice(
            tokens=5,
            token_ids=(4, 5, 6, 7, 8),
            steps=(CapturedStep(3, 2, 3), CapturedStep(3, 1, 1, 1)),
            phases=(("reasoning", 2), ("content", 3)),
            finish="stop",
            tools=("valid",),
            seed=7,
        ),
    ),
    ttft_ms=12.5,
)


def read(path: Path, **options: Any) -> list[CaptureRecord]:
    return list(read_records(path, **options))


def test_a_record_comes_back_as_it_was() -> None:
    assert parse_record(format_record(RECORD)) == RECORD


def test_the_steps_of_lookups_come_back() -> None:
    """Also where no step was cut."""
    steps = (CapturedStep(3, 2, 3), CapturedStep(8, 1, 2, lookup=1))
    record = replace(RECORD, choices=(replace(RECORD.choices[0], steps=steps),))
    assert parse_record(format_record(record)) == record
    assert json.loads(format_record(record))[OURS]["choices"][0]["steps"] == [
        [3, 2, 3],
        [8, 1, 2, 0, 1],
    ]


def test_a_line_is_a_mooncake_trace_with_one_more_key() -> None:
    row = json.loads(format_record(RECORD))
    known = {"timestamp", "session_id", "messages", "tools", "output_length", OURS}
    assert set(row) == known  # of messages, text_input and input_length exactly one


def test_a_body_can_be_sent_again() -> None:
    body = RECORD.request_body()
    assert body["messages"] == list(RECORD.messages or ())
    assert body["tools"] and body["model"] == "demo"


@pytest.mark.parametrize("name", ["part.jsonl", "part.jsonl.gz"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_file_cut_anywhere_is_readable_to_its_last_whole_record(
    tmp_path: Path, name: str, encrypted: bool
) -> None:
    cipher = make_cipher([Fernet.generate_key().decode()] if encrypted else [])
    path = tmp_path / "whole.jsonl"
    write_records(path, [RECORD] * 4, cipher)
    plain = path.read_bytes()
    line = len(plain) // 4
    stored = gzip.compress(plain) if name.endswith("gz") else plain
    path.unlink()
    for at in range(0, len(stored), 7):
        (tmp_path / name).write_bytes(stored[:at])
        found = read(tmp_path, cipher=cipher)
        assert found == [RECORD] * len(found)
        if not name.endswith("gz"):
            assert len(found) in (at // line, (at + 1) // line)
    (tmp_path / name).write_bytes(stored)
    assert read(tmp_path, cipher=cipher) == [RECORD] * 4


def test_a_file_of_several_gzip_members_is_read_whole(tmp_path: Path) -> None:
    """``cat a.jsonl.gz b.jsonl.gz`` makes such a file; tapes and some tools put zeros behind a
    member."""
    line = format_record(RECORD) + b"\n"
    members = [gzip.compress(line * count) for count in (1, 2, 3)]
    named: list[str] = []
    for padding in (b"", bytes(512)):
        (tmp_path / "a.jsonl.gz").write_bytes(padding.join((*members, b"")))
        assert read(tmp_path, skip=named.append) == [RECORD] * 6
    assert not named


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_members_are_found_wherever_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", chunk)
    line = format_record(RECORD) + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(bytes(3).join([gzip.compress(line)] * 3))
    assert read(tmp_path) == [RECORD] * 3


@pytest.mark.parametrize(
    ("behind", "why"),
    [(b"no gzip", "damaged"), (gzip.compress(b"x" * 99, mtime=0)[:20], "truncated")],
    ids=["damaged", "truncated"],
)
def test_damage_of_a_gzipped_file_is_reported(tmp_path: Path, behind: bytes, why: str) -> None:
    stored = gzip.compress(format_record(RECORD) + b"\n") + behind
    (tmp_path / "a.jsonl.gz").write_bytes(stored)
    named: list[str] = []
    assert read(tmp_path, skip=named.append)[0] == RECORD
    assert named[0].startswith("a.jsonl.gz: its gzip data is " + why)


def test_a_damaged_line_is_skipped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(format_record(RECORD) + b'\n{"half": \n[]\n' + format_record(RECORD) + b"\n")
    named: list[str] = []
    assert len(read(path, skip=named.append)) == 2
    assert [text.partition(" ")[0] for text in named] == ["a.jsonl:2:", "a.jsonl:3:"]


def test_an_encrypted_file_needs_its_key(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    write_records(path, [RECORD], make_cipher([old]))
    assert b"content" not in path.read_bytes()
    with pytest.raises(CaptureError, match="--key-file"):
        read(path)
    with pytest.raises(CaptureError, match="no capture record"):
        read(path, cipher=make_cipher([new]))
    assert read(path, cipher=make_cipher([new, old])) == [RECORD]


def test_foreign_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(
        '{"timestamp": 27, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}'
    )
    (record,) = read(path)
    assert (record.input_length, record.tokens, record.hash_ids) == (600, 9, (0, 1))
    with pytest.raises(CaptureError, match="hashes"):
        record.request_body()


def test_a_later_version_is_refused() -> None:
    with pytest.raises(CaptureError, match="update eaglegate"):
        parse_record(b'{"input_length": 1, "eaglegate": {"version": 2}}')


@pytest.mark.parametrize(
    ("tokens", "expected"), [(5, [0]), (512, [31]), (513, [31, 32]), (1030, [31, 63, 64])]
)
def test_hash_ids_are_those_of_larger_blocks(tokens: int, expected: list[int]) -> None:
    assert list(coarsen(range(-(-tokens // 16)), tokens)) == expected
