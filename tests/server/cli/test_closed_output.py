"""A command whose output is read by ``head`` ends without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.server.__main__ import main

ROOT = Path(__file__).parents[3]


def run_without_reader(*argv: str) -> tuple[int, str]:
    """Exit status and standard error of a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "eaglegate.server", *argv]
    with os.fdopen(writer, "w") as out:
        ended = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("argv", [["help"], ["explain", "--help"]])
def test_a_reader_that_has_left(argv: list[str]) -> None:
    assert run_without_reader(*argv) == (0, "")


def test_a_capture_without_a_reader(tmp_path: Path) -> None:
    batch, capture = tmp_path / "batch.jsonl", tmp_path / "capture.jsonl"
    line = '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}'
    batch.write_text(f"{line}\n")
    assert main(["capture", "import", str(batch), "--out", str(capture)]) == 0
    assert run_without_reader("capture", "show", str(capture)) == (0, "")


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serv"]) == 2
    assert "there is no command 'serv'; did you mean serve?" in capsys.readouterr().err
