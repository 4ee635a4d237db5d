"""Training of the demo's drafts: both methods side by side, with the same data, steps and seeds.

The first seed is written to `eagle3` and `eagle3_1` in the folder, the others to `eagle3-seed2` and
so on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

from eaglegate.lab.training.eagle import METHODS


def out_of(folder: Path, method: str, seed: int) -> Path:
    name = method.replace(".", "_")
    return folder / (name if seed == 1 else f"{name}-seed{seed}")


def command(folder: Path, method: str, seed: int, steps: int) -> list[str]:
    """Return the command of one training run.

    On a CPU each has one thread, because two runs side by side are faster than one with two
    threads.
    """
    threads = [] if torch.cuda.is_available() else ["--threads", "1"]
    return [
        *(
            sys.executable,
            "-m",
            "eaglegate.lab.training.draft_cli",
            "--target",
            str(folder / "target"),
        ),
        *("--data", str(folder / "answers.jsonl"), "--method", method),
        *("--out", str(out_of(folder, method, seed)), "--steps", str(steps)),
        *("--seed", str(seed), *threads),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    options = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for seed in range(1, options.seeds + 1):
        trainings = [
            subprocess.Popen(command(options.folder, method, seed, options.steps), env=environment)
            for method in METHODS
        ]
        statuses = [training.wait() for training in trainings]
        if any(statuses):
            sys.exit("a draft training failed; restart to continue from its last state")


if __name__ == "__main__":
    main()
