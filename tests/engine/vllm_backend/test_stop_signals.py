"""Signals to a whole group end the gateway alone; its helpers end when it asks them to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from eaglegate.engine.stop_signals import STOP
from eaglegate.engine.types import Constraint
from eaglegate.engine.vllm_backend.arguments import DEMO
from eaglegate.engine.vllm_backend.child_process import create_context
from eaglegate.engine.vllm_backend.grammar_probe import GrammarProbe
from eaglegate.text.rendering.encoding import RenderLimits
from eaglegate.text.rendering.sandbox import TemplateInput, TemplateRunner
from tests.engine.vllm_backend.signalled import unfreeze_at_the_end, wait_for_line

pytestmark = pytest.mark.thorough

SOON_S = 120


def send_stop_signals(pid: int) -> None:
    for number in STOP:
        os.kill(pid, number)


def start(target: Callable[[Any], None] = wait_for_line) -> tuple[BaseProcess, Any]:
    context = create_context()
    ours, theirs = context.Pipe()
    process: BaseProcess = context.Process(target=target, args=(theirs,))
    process.start()
    assert ours.poll(SOON_S)
    assert ours.recv() == "up"
    return process, ours


def test_a_process_that_ends_collects_no_garbage() -> None:
    process, pipe = start(unfreeze_at_the_end)
    process.terminate()
    assert pipe.poll(SOON_S)
    assert pipe.recv() > 1000
    process.join(SOON_S)
    assert process.exitcode == 0


def test_an_engine_outlives_signals_and_ends_when_it_is_asked_to() -> None:
    process, pipe = start()
    assert process.pid is not None
    send_stop_signals(process.pid)
    assert not connection.wait([process.sentinel], timeout=0.3)
    process.terminate()
    process.join(SOON_S)
    assert process.exitcode == 7, "by the handler that it has for SIGTERM"
    pipe.close()


FORKING = """
import asyncio, contextlib, json, multiprocessing, os, signal, socket, sys
from eaglegate.engine.vllm_backend.child_process import separate_engines

def report(pipe):
    files = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n != "0"
             if os.path.lexists(f"/proc/self/fd/{n}")]
    pipe.send((files, signal.set_wakeup_fd(-1)))
    pipe.recv()

async def main():
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    listener = socket.create_server(("127.0.0.1", 0))
    wakeup = os.readlink(f"/proc/self/fd/{loop._csock.fileno()}")
    with separate_engines():
        context = utils.get_mp_context()
        ours, theirs = context.Pipe()
        process = context.Process(target=report, args=(theirs,))
        process.start()
    try:
        files, number = await asyncio.to_thread(ours.recv)
        os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), 0.5)
        listening = os.readlink(f"/proc/self/fd/{listener.fileno()}")
        print(json.dumps({"listener": listening in files, "wakeup": wakeup in files,
                          "number": number, "stopped": stopped.is_set(),
                          "alive": process.is_alive()}))
    finally:
        process.kill()

if __name__ == "__main__":  # the child runs what is above, and need not import vLLM
    from vllm.v1.engine import utils
    utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    asyncio.run(main())
"""


def test_where_the_platform_forks_the_engine_has_nothing_of_the_gateway(tmp_path: Path) -> None:
    """Engines are forked on GPUs: one would hold the port and pass its signals on to the
    gateway."""
    script = tmp_path / "gateway.py"
    script.write_text(FORKING)
    with Popen([sys.executable, str(script)], stdout=PIPE, text=True) as process:
        found = json.loads(process.communicate(timeout=120)[0])
    assert found == {
        "listener": False,
        "wakeup": False,
        "number": -1,
        "stopped": False,
        "alive": True,
    }


def test_a_template_child_outlives_a_signal() -> None:
    runner = TemplateRunner()
    given = TemplateInput(
        "{{ messages[0].content }}", [{"role": "user", "content": "Hi"}], None, {}, {}
    )

    def render() -> int:
        assert runner.write(given, None, RenderLimits()) == "Hi"
        (child,) = runner._idle
        return child.pid

    first = render()
    send_stop_signals(first)
    assert render() == first
    assert os.getpgid(first) != os.getpgid(0)
    runner.close()


async def test_the_grammar_child_outlives_a_signal() -> None:
    probe = GrammarProbe(str(DEMO / "target"))
    await probe.check(Constraint("regex", "a"))
    first = probe._child
    assert first is not None
    send_stop_signals(first.pid)
    await probe.check(Constraint("regex", "b"))
    assert probe._child is first
    assert os.getpgid(first.pid) != os.getpgid(0)
    await probe.aclose()
