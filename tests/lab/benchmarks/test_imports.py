"""Every benchmark can be imported: they are run by hand, so nothing else would notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.lab import benchmarks

pytestmark = pytest.mark.slow


def test_every_benchmark_can_be_imported() -> None:
    (folder,) = map(Path, benchmarks.__path__)
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert {"wire", "gpu_day"} <= {*names}
    lines = [f"import {benchmarks.__name__}.{name}" for name in names]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
