"""Stand-ins for tuning and comparing: python scripted_commands.py NAME STATE FOLDER

A command waits while ``STATE/hold-NAME`` is there, fails while ``STATE/break-NAME`` is there, and
writes ``STATE/at-NAME`` when it begins.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any


def make_report(low: float = 1.05) -> dict[str, Any]:
    """A report as ``eaglegate drafts compare`` writes it."""
    ratio = {"value": low + 0.05, "low": low, "high": low + 0.1, "clusters": 30}
    draft = {"refused": False, "findings": [], "slices": {"all": {"3": {"value": 2.0}}}}
    return {
        "answers": 40,
        "drafts": {"parent": draft, "candidate": draft},
        "against": {"drafts": {"candidate": {"all": {"ratio": ratio}}}},
    }


def tune(folder: Path) -> None:
    """Write a draft that differs from its parent, and a line for each run."""
    draft = folder / "draft"
    draft.mkdir(exist_ok=True)
    with (draft / "steps.txt").open("a") as steps:
        steps.write("step\n")
    shutil.copyfile(folder / "parent" / "config.json", draft / "config.json")
    weights = bytearray((folder / "parent" / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (draft / "model.safetensors").write_bytes(weights)


def run_command(name: str, state: Path, folder: Path) -> int:
    (state / f"at-{name}").touch()
    while (state / f"hold-{name}").exists():
        time.sleep(0.02)
    if (state / f"break-{name}").exists():
        print("no memory")
        return 1
    if name == "tune":
        tune(folder)
        return 0
    report = state / "report.json"
    (folder / "compare").mkdir(exist_ok=True)
    found = json.loads(report.read_text()) if report.exists() else make_report()
    (folder / "compare" / "report.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
