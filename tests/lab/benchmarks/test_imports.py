"""Every benchmark can be imported: they are run by hand, so nothing else would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglegate.lab import benchmarks
from tests.forks import run_python

pytestmark = pytest.mark.slow


def test_every_benchmark_can_be_imported() -> None:
    (folder,) = map(Path, benchmarks.__path__)
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert {"wire", "gpu_day"} <= {*names}
    lines = [f"import {benchmarks.__name__}.{name}" for name in names]
    done = run_python(["-m", "timeit", "-n1", "-r1", *lines], 120)
    assert done.returncode == 0, done.stderr
