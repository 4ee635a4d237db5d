"""A child goes when its parent is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARENT = """
import multiprocessing, os, sys, time

def child(alive):
    from eaglegate.engine.orphan import die_with_parent
    die_with_parent()
    os.write(alive, b"up")
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    process = context.Process(target=child, args=(int(sys.argv[1]),))
    process.start()
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_a_killed_parent_takes_its_child_along(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(script), str(write)],
        pass_fds=(write,),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    os.close(write)
    with os.fdopen(read, "rb") as alive:
        assert alive.read(2) == b"up"
        process.kill()
        process.wait()
        assert alive.read() == b"", "the pipe ends when the last holder is gone"
