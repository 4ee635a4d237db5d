"""Fixtures every room may use: the real gateway on the demo model, started once per session."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.forks import NO_LIMITS, Forked, Limits, can_fork, fork_python

if TYPE_CHECKING:
    from tests.vision_demo import VisionDemo

HERE = Path(__file__).parent
ROOT = HERE.parent
START_LIMIT_S = 240
ADMIN = ("--admin-port", "0")
"""Opens /admin, which needs a port of its own where there are no keys."""
SLOW_LIMIT_S = 900
"""Limit of a test that starts real engines; all others have pytest's ``timeout`` setting. A
deadlock fails its test and not the whole run."""

MODULE_MARKS = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)$", re.MULTILINE)
MARK = re.compile(r"pytest\.mark\.(\w+)")
SLOW = {"slow", "alone"}
LEFT_OUT = {
    "not slow": SLOW,
    "not slow and not sample": SLOW,
    "not slow and not thorough": SLOW | {"thorough"},
    "slow and not alone": {"alone"},
}
"""Marks of modules that an expression deselects."""
WANTED = {"gpu_path": "gpu_path", "slow and not alone": "slow", "alone": "alone"}
"""The mark without which an expression deselects a test: files without it are not imported."""
NEEDS_ENGINE = (
    "engine/vllm_backend",
    "faults/test_start_faults.py",
    "server/cli/test_front_end_flags.py",
    "server/apis/shared/test_strict_schema.py",
    "lab/training",
)
"""Tests that import vLLM, torch or transformers: left out where vLLM is not installed."""
HAS_ENGINE = find_spec("vllm") is not None
CORE = (
    "e2e/test_first_light.py",
    "e2e/test_remote_worker.py",
    "e2e/test_start.py",
    "engine/vllm_backend/test_audits.py",
    "engine/vllm_backend/test_draft_swap.py",
    "engine/vllm_backend/test_images.py",
    "engine/vllm_backend/test_lookups.py",
    "engine/vllm_backend/test_lossless.py",
    "engine/vllm_backend/test_seeds.py",
    "examples/test_examples.py",
    "faults/test_engine_faults.py",
    "observability/test_account_exact.py",
    "test_readme.py",
)
"""Files whose slow tests `.ci/run` demands on any machine, however slow: text and seeds at every
depth, accounts, audits, exchanges of drafts, recovery, workers, and a user's first day.
"""
LONGEST = (
    "engine/vllm_backend/test_doctor_served.py",
    "faults/test_engine_faults.py",
    "e2e/test_improve.py",
    "engine/vllm_backend/test_sampling_fields.py",
    "test_features.py",
    "features/pod/test_real_pod.py",
    "engine/vllm_backend/test_seeds.py",
    "server/apis/shared/test_openapi.py",
    "faults/test_fleet_faults.py",
    "engine/vllm_backend/test_lookups.py",
    "engine/vllm_backend/test_audits.py",
    "e2e/test_prove.py",
    "e2e/test_langchain_standard.py",
    "examples/test_examples.py",
    "e2e/test_plain_workers.py",
    "engine/vllm_backend/test_lossless.py",
    "faults/test_faulty_drafts.py",
    "faults/test_start_faults.py",
    "engine/vllm_backend/test_tensor_parallel.py",
    "engine/vllm_backend/test_adapters.py",
    "e2e/test_draft_swap.py",
    "engine/vllm_backend/test_images.py",
)
"""Files whose slow tests take more than 35 seconds, the longest first: begun last, one of them
would run beside an idle core.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-set",
        choices=("all", "core", "rest"),
        default="all",
        help="of the slow tests, those in the files of CORE, or in the others",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give the examples of property tests no deadline: the machine may be busy.

    They are the same ones each time, so that no run fails by chance.
    ``--hypothesis-profile random`` tries others.
    """
    from hypothesis import settings  # pytest has to rewrite its plugin first

    settings.register_profile("random", deadline=None)
    settings.register_profile("fixed", deadline=None, derandomize=True)
    settings.load_profile(config.getoption("--hypothesis-profile") or "fixed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what would be deselected anyway before it is imported, and what cannot be."""
    inside = collection_path.relative_to(HERE).as_posix()
    if not HAS_ENGINE and inside in NEEDS_ENGINE:
        return True
    expression = config.option.markexpr
    marks, wanted = LEFT_OUT.get(expression, set()), WANTED.get(expression)
    if not (marks or wanted) or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    if wanted and f"mark.{wanted}" not in text:
        return True
    if wanted and config.option.slow_set != "all":
        return True if (inside in CORE) != (config.option.slow_set == "core") else None
    found = MODULE_MARKS.search(text)
    return (found is not None and bool(marks & set(MARK.findall(found[1])))) or None


def pytest_sessionstart() -> None:
    """Spare the garbage collector the collected tests, which all stay to the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr in WANTED:  # the processes of xdist are not told how it distributes
        items.sort(key=_rank_file)
    for item in items:
        if item.get_closest_marker("alone"):
            item.add_marker("slow")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


def _rank_file(item: pytest.Item) -> int:
    inside = item.path.relative_to(HERE).as_posix()
    return LONGEST.index(inside) if inside in LONGEST else len(LONGEST)


@dataclass(frozen=True)
class RunningGateway:
    """A served gateway in a process of its own."""

    url: str
    operator: str
    """Base URL of the operator paths: another port with ``--admin-port``."""
    banner: str
    process: subprocess.Popen[str] | Forked
    log: Path

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum of a metric's samples whose labels match; None without any."""
        values = [
            float(value)
            for found, text, value in SAMPLE.findall(httpx.get(f"{self.operator}/metrics").text)
            if found == name and all(f'{key}="{v}"' in text for key, v in labels.items())
        ]
        return sum(values) if values else None


SAMPLE = re.compile(r"^([a-zA-Z_:]+)(\{.*\})? ([^ ]+)$", re.MULTILINE)


@contextmanager
def serving(
    log: Path,
    arguments: Sequence[str] = (),
    prefix: Sequence[str] = (),
    forks: bool = True,
    limits: Limits = NO_LIMITS,
) -> Iterator[RunningGateway]:
    """``eaglegate serve``, run by ``prefix``, on a free port until the block ends.

    It is forked from a process that has imported vLLM where that is possible and ``forks`` is true
    (``tests/forks.py``).
    """
    command = ["-m", "eaglegate.server", "serve", "--port", "0", *arguments]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    with log.open("w") as errors:
        if forks and not prefix and HAS_ENGINE and can_fork(environment):
            process: subprocess.Popen[str] | Forked
            process = fork_python(command, environment, errors, limits)
        else:
            process = subprocess.Popen(
                [*prefix, sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment,
                preexec_fn=limits.apply,
            )
        try:
            as_json = "--log-format=json" in arguments
            yield (_ready_by_log if as_json else _ready)(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[str] | Forked, log: Path) -> RunningGateway:
    assert process.stdout is not None
    banner = ""
    for line in process.stdout:
        banner += line
        if line.strip().startswith("-d "):
            url = re.search(r"eaglegate serves (http://[^/\s]+)", banner)
            operator = re.search(r"(http://[^/\s]+)/metrics", banner)
            assert url is not None
            assert operator is not None
            return RunningGateway(url[1], operator[1], banner, process, log)
    process.wait()
    raise AssertionError(f"the gateway did not start:\n{banner}\n{log.read_text()[-3000:]}")


def _ready_by_log(process: subprocess.Popen[str] | Forked, log: Path) -> RunningGateway:
    """Wait for the log line with the addresses: a gateway that logs JSON prints no banner."""
    while process.poll() is None:
        for line in map(json.loads, log.read_text().splitlines()):
            if "operator" in line:
                return RunningGateway(line["url"], line["operator"], line["message"], process, log)
        time.sleep(0.1)
    raise AssertionError(f"the gateway did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def vision_demo(tmp_path_factory: pytest.TempPathFactory) -> VisionDemo:
    """The demo as a model that reads images, and its draft. Slow: mark its tests so."""
    from tests.vision_demo import make_vision_demo

    return make_vision_demo(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="session")
def demo_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """The built-in demo, in float32. Slow: mark its tests so.

    Tests compare its texts with other engines'. In bfloat16, the demo's own type, two tokens may be
    equal within the rounding of another batch; some CPUs (AMX) round differently for every size.
    """
    log = tmp_path_factory.mktemp("demo") / "serve.log"
    with serving(log, ("--dtype=float32",)) as gateway:
        yield gateway
