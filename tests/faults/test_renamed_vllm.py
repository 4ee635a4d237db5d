"""A vLLM whose private names are others: the gateway serves the same text and says what is lost."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ADMIN, ROOT, RunningGateway, serving
from tests.faults import engine_process, streams

vllm = pytest.importorskip("vllm")

pytestmark = pytest.mark.slow

OUTPUTS = re.compile(
    r"\b(OutputProcessor|propagate_error|_finish_request|process_outputs|output_handler)\b"
)
BODIES = [streams.request(kind, 3, 80) for kind in ("chat", "structured", "logprobs")]


def rename(found: re.Match[str]) -> str:
    return f"{found[1]}_renamed"


def copy_renamed(folder: Path) -> Path:
    """vLLM of links, but for the files in which a name of ``OUTPUTS`` occurs."""
    source = Path(vllm.__file__).parent
    shutil.copytree(source, folder / "vllm", copy_function=os.symlink)
    for file in source.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if OUTPUTS.search(text):
            changed = folder / "vllm" / file.relative_to(source)
            changed.unlink()
            changed.write_text(OUTPUTS.sub(rename, text), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_renamed(tmp_path_factory.mktemp("renamed"))


@pytest.fixture(scope="module")
def gateway(renamed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    prefix = ("env", f"PYTHONPATH={renamed}:{ROOT}/.src")
    log = tmp_path_factory.mktemp("log") / "serve.log"
    with serving(log, ADMIN, prefix) as running:
        yield running


def hear(gateway: RunningGateway, kill: bool = False) -> list[str]:
    async def listen() -> list[streams.Heard]:
        began = asyncio.Event()
        task = asyncio.create_task(streams.hear_all(gateway.url, BODIES, began))
        await began.wait()
        assert not kill or engine_process.kill(gateway.process.pid)
        return await task

    heard = asyncio.run(listen())
    assert all(one.whole for one in heard), [one.error for one in heard]
    return [one.said for one in heard]


def test_the_text_is_the_same_and_survives_the_engine(
    gateway: RunningGateway, demo_gateway: RunningGateway
) -> None:
    expected = hear(demo_gateway)
    assert hear(gateway) == expected
    assert hear(gateway, kill=True) == expected
    assert gateway.metric("eaglegate_engine_degraded", part="outputs") == 1
    log = gateway.log.read_text()
    assert "OutputProcessor.process_outputs" in log
    assert "AsyncLLM.generate" in log


def test_check_says_what_is_lost(renamed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eaglegate.server", "check", "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{renamed}:{ROOT}/.src"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AsyncLLM.generate" in done.stdout
