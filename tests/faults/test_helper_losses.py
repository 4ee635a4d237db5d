"""The gateway's helpers are killed: the request in hand succeeds or says so, the next one works.

The tests of the grammar child are in ``tests/engine/vllm_backend/test_grammar_probe_lost``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from eaglegate.features.capture.files import CaptureWriter
from eaglegate.text.rendering import sandbox
from eaglegate.text.rendering.encoding import NO_LIMITS
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from eaglegate.text.rendering.sandbox import RendererLost, TemplateInput, TemplateRunner
from tests.server.conftest import DEMO, Lab

pytestmark = pytest.mark.thorough

OWN = "{% for m in messages %}{{ m.content }}{% endfor %}"
START = sandbox.subprocess.Popen


@pytest.fixture
def runner():
    made = TemplateRunner()
    yield made
    made.close()


def render(runner: TemplateRunner, content: str = "Hi") -> str:
    talk = [{"role": "user", "content": content}]
    return runner.write(TemplateInput(OWN, talk, None, {}, {}), None, NO_LIMITS)


def dying(signals: list[int]) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts children that end by these signals, each at its first job; then whole ones."""

    def start(command, **given):
        if not signals:
            return START(command, **given)
        script = f"import os, sys; sys.stdin.buffer.read(8); os.kill(os.getpid(), {signals.pop(0)})"
        return START((sys.executable, "-c", script), **given)

    return start


def test_a_prompt_is_rendered_though_its_child_is_killed(runner, monkeypatch):
    monkeypatch.setattr(sandbox.subprocess, "Popen", dying([signal.SIGKILL]))
    assert render(runner) == "Hi"
    assert render(runner, "again") == "again"


def test_two_lost_children_are_an_error_to_be_tried_again(runner, monkeypatch):
    monkeypatch.setattr(sandbox.subprocess, "Popen", dying([signal.SIGKILL, signal.SIGTERM]))
    with pytest.raises(RendererLost, match="Try again") as lost:
        render(runner)
    assert lost.value.retry_after_s
    assert render(runner) == "Hi"


def test_a_template_that_crashes_every_child_is_refused(runner, monkeypatch):
    monkeypatch.setattr(sandbox.subprocess, "Popen", dying([signal.SIGSEGV, signal.SIGABRT]))
    with pytest.raises(ValueError, match="crashed"):
        render(runner)
    assert render(runner) == "Hi"


def test_a_template_past_its_time_is_refused_at_once(runner, monkeypatch):
    signals = [signal.SIGPROF, signal.SIGKILL]
    monkeypatch.setattr(sandbox.subprocess, "Popen", dying(signals))
    with pytest.raises(ValueError, match="took more than"):
        render(runner)
    assert len(signals) == 1


async def test_a_client_hears_that_it_may_try_again(monkeypatch):
    lab = Lab(TemplateRenderer(ModelFiles.find(str(DEMO), None, None)))
    lab.says("yes")
    served = replace(lab.gateway.pipeline.served_model, trusts_templates=True)
    lab.gateway.open(replace(lab.gateway.pipeline, served_model=served))
    monkeypatch.setattr(sandbox.subprocess, "Popen", dying([signal.SIGKILL] * 2))
    body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template": OWN}
    lost = await lab.post("/v1/chat/completions", body)
    assert (lost.status, lost.json["error"]["code"]) == (429, "engine_overloaded")
    assert "retry-after" in lost.headers
    assert (await lab.post("/v1/chat/completions", body)).status == 200


class Folder:
    """A capture folder that ends the writer's thread at the first record."""

    class limits:
        part_bytes = 1 << 20

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.failing = True
        self.arrived = threading.Event()

    def append(self, line: bytes) -> None:
        if self.failing:
            self.failing = False
            raise SystemExit
        self.lines.append(line)
        self.arrived.set()

    def close(self) -> None: ...


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_capture_thread_is_named_and_replaced(caplog):
    folder = Folder()
    writer = CaptureWriter(folder, lambda item: item)
    writer.put(b"lost", 4)
    writer._thread.join()
    writer.put(b"kept", 4)
    assert folder.arrived.wait(30)
    writer.close()
    assert folder.lines == [b"kept\n"]
    assert "capture writer thread died" in caplog.text


def test_the_engine_goes_on_where_its_log_cannot_be_passed_on():
    pytest.importorskip("vllm")
    from eaglegate.engine.vllm_backend.child_log import ChildLog

    log = ChildLog()
    read, write = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    reader = threading.Thread(target=log._read, args=(read, full))
    reader.start()
    os.write(write, b"first\nsecond\n")
    os.close(write)
    reader.join()
    assert log.lines == ["first", "second"]
