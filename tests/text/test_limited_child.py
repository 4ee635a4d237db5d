"""Programs of child processes set their own limits before they read what a client wrote."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {
    "eaglegate.text.media.decoder": ("1000000", "3"),
    "eaglegate.features.audit.grammars": (),
}


def read_limits(program: str) -> dict[str, str]:
    """Return the limits of a child that is ready, by the kernel's names."""
    command = (sys.executable, "-m", program, *PROGRAMS[program])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"true\n"
        table = Path(f"/proc/{child.pid}/limits").read_text(encoding="utf-8")
        child.stdin.close()
    return dict(re.findall(r"^(Max [a-z ]+?) {2,}(\w+)", table, re.MULTILINE))


@pytest.mark.parametrize("program", PROGRAMS)
def test_memory_is_limited(program: str) -> None:
    assert read_limits(program)["Max address space"] == str(1 << 30)


def test_a_decoder_writes_no_file() -> None:
    assert read_limits("eaglegate.text.media.decoder")["Max file size"] == "0"
