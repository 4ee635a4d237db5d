"""Files of a capture: bounds, full disks, processes killed in mid-write."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eaglegate.features.capture import files as module
from eaglegate.features.capture.files import CaptureFolder, CaptureWriter
from eaglegate.features.capture.limits import CaptureLimits
from eaglegate.observability.captures.files import read_records
from eaglegate.observability.captures.record import CaptureRecord, format_record

RECORD = CaptureRecord(messages=({"role": "user", "content": "x" * 500},), id="r")
LINE = format_record(RECORD) + b"\n"


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "capture"
    CaptureFolder(folder, CaptureLimits()).append(LINE)
    (path,) = folder.glob("*.jsonl")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_can_read_is_taken_from_them(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    for name in ("old.jsonl", "old.jsonl.gz", "notes.txt"):
        (folder / name).touch()
        (folder / name).chmod(0o644)
    folder.chmod(0o755)
    CaptureFolder(folder, CaptureLimits())
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert modes == {"old.jsonl": 0o600, "old.jsonl.gz": 0o600, "notes.txt": 0o644}


def test_a_folder_that_stays_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that belong to root, or lie on a disk without modes, stay open."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(OSError, match="is open to other users"):
        CaptureFolder(tmp_path, CaptureLimits())


def test_files_are_bounded_in_size_and_the_oldest_go_first(tmp_path: Path) -> None:
    limits = CaptureLimits(max_bytes=64 * len(LINE))
    folder = CaptureFolder(tmp_path, limits)
    for number in range(500):
        folder.append(
            format_record(CaptureRecord(input_length=number, text_input="y" * 500)) + b"\n"
        )
        assert total(tmp_path) <= limits.max_bytes
    assert total(tmp_path) > limits.max_bytes // 2
    kept = [record.input_length for record in read_records(tmp_path)]
    assert kept == list(range(500 - len(kept), 500))


def test_files_are_bounded_in_age(tmp_path: Path) -> None:
    now = time.time()
    folder = CaptureFolder(tmp_path, CaptureLimits(max_age_s=1600.0), lambda: now)
    folder.append(LINE)
    (old,) = tmp_path.glob("*.jsonl")
    now += 200  # past a sixteenth of the age: another file
    folder.append(LINE)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    now += 1600
    folder.append(LINE)
    assert not old.exists()
    CaptureFolder(tmp_path, CaptureLimits(max_age_s=1.0), lambda: now + 9999)
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_file_deleted_under_the_writer_is_replaced(tmp_path: Path) -> None:
    folder = CaptureFolder(tmp_path, CaptureLimits())
    folder.append(LINE)
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    folder.append(LINE)
    assert len(list(read_records(tmp_path))) == 1


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "salt").write_bytes(b"s" * 32)
    (tmp_path / "notes.txt").write_text("mine")
    limits = CaptureLimits(max_bytes=2 * len(LINE), max_age_s=0.001)
    folder = CaptureFolder(tmp_path, limits)
    for _ in range(5):
        folder.append(LINE)
    assert {"salt", "notes.txt"} <= {path.name for path in tmp_path.iterdir()}


FULL_DISK = """
import resource, sys
from pathlib import Path
from eaglegate.features.capture import files as module
from eaglegate.features.capture.files import CaptureFolder, CaptureWriter
from eaglegate.features.capture.limits import CaptureLimits
module.RETRY_S = 0.0
line, folder = sys.argv[1].encode(), Path(sys.argv[2])
size = 10 * (len(line) + 1) + len(line) // 2
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
writer = CaptureWriter(CaptureFolder(folder, CaptureLimits()), lambda item: item)
for _ in range(25):
    writer.put(line, 1)
writer.close()
print(writer.records, writer.dropped)
"""


def test_a_full_disk_costs_nothing_but_the_capture(tmp_path: Path) -> None:
    """A file may not grow past ten and a half records: the half is taken back each time."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, LINE.decode().strip(), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("10 ") and "'disk': 15" in done.stdout
    assert total(tmp_path) == 10 * len(LINE)
    assert done.stderr.count("capture dropped a request: File too large") == 1
    assert "xxx" not in done.stderr
    assert list(read_records(tmp_path)) == [RECORD] * 10


KILLED = """
import os, sys
from pathlib import Path
from eaglegate.features.capture.files import CaptureFolder
from eaglegate.features.capture.limits import CaptureLimits
folder = CaptureFolder(Path(sys.argv[2]), CaptureLimits())
print("ready", flush=True)
while True:
    folder.append(sys.argv[1].encode() + b"\\n")
"""


def test_a_process_killed_in_mid_write_loses_the_last_record_at_most(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, LINE.decode().strip(), str(tmp_path)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    while total(tmp_path) < 100 * len(LINE):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    damaged: list[str] = []
    found = list(read_records(tmp_path, skip=damaged.append))
    # A record without its line break is whole.
    assert found == [RECORD] * ((total(tmp_path) + 1) // len(LINE))
    assert len(damaged) <= 1


class SlowDisk:
    """Writes as many records as it is released."""

    def __init__(self, folder: Path) -> None:
        self._gate, self._release = os.pipe()
        self.writer = CaptureWriter(CaptureFolder(folder, CaptureLimits()), self._wait)

    def _wait(self, item: bytes) -> bytes:
        os.read(self._gate, 1)
        return item

    def release(self, count: int) -> None:
        os.write(self._release, b"x" * count)
        self.writer.close()


def test_a_slow_disk_drops_and_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "QUEUE_REQUESTS", 4)
    writer = (disk := SlowDisk(tmp_path)).writer
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            writer.put(LINE.strip(), 1)
    assert time.monotonic() - began < 1
    assert writer.dropped["queue"] >= 45
    assert len(caplog.records) == 1 and "behind" in caplog.text
    disk.release(50)
    assert writer.records + writer.dropped["queue"] == 50


def test_memory_of_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 1000)
    disk = SlowDisk(tmp_path)
    for _ in range(10):
        disk.writer.put(LINE.strip(), 400)
    assert 7 <= disk.writer.dropped["queue"] <= 8
    disk.release(10)


def test_a_record_larger_than_a_file_is_dropped(tmp_path: Path) -> None:
    limits = CaptureLimits(max_bytes=8 * len(LINE))
    writer = CaptureWriter(CaptureFolder(tmp_path, limits), lambda item: item)
    writer.put(LINE.strip(), 1)
    writer.close()
    assert writer.dropped["size"] == 1
    assert not total(tmp_path)


def test_a_fault_of_ours_names_no_content(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> bytes:
        raise KeyError("the prompt")

    writer = CaptureWriter(CaptureFolder(tmp_path, CaptureLimits()), fail)
    with caplog.at_level(logging.WARNING):
        writer.put(RECORD, 1)
        writer.close()
    assert writer.dropped["fault"] == 1
    assert "KeyError" in caplog.text and "prompt" not in caplog.text
