"""A child that is lost while it tries a constraint says nothing about the constraint."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from eaglegate.engine.errors import EngineOverloaded, RequestRejected
from eaglegate.engine.types import Constraint
from eaglegate.engine.vllm_backend.grammar_probe import GrammarProbe

GOOD = Constraint("json_schema", '{"type": "object"}')
OTHER = Constraint("regex", "[ab]{2}")
CHILD = """
import json, os, pathlib, signal, sys

folder = pathlib.Path({folder!r})

def end(how):
    if how >= 0:
        os._exit(how)
    os.kill(os.getpid(), -how)
    signal.pause()

def next_of(name):
    file = folder / name
    first, _, rest = (file.read_text() if file.exists() else "").partition(" ")
    file.write_text(rest)
    return first

if how := next_of("starts"):
    if how == "null":
        print("null", flush=True)
        sys.exit()
    end(int(how))
print(3.0, flush=True)
for line in sys.stdin:
    number, _, asked = line.partition(" ")
    with (folder / "asked").open("a") as file:
        file.write(asked)
    how = next_of("tries")
    if how == "half":
        print('[1, "o', end="", flush=True)
        end(-9)
    if how:
        end(int(how))
    print(json.dumps([int(number), "ok"]), flush=True)
"""
KILLED, TERMINATED, ITS_CLOCK = -signal.SIGKILL, -signal.SIGTERM, -signal.SIGPROF
CRASHED, ABORTED, RAISED = -signal.SIGSEGV, -signal.SIGABRT, 1


@pytest.fixture(params=["at once", "late"])
def watcher(request, monkeypatch):
    """Let the event loop learn of a child's end at once, or late."""
    reap = os.waitpid

    def reap_late(pid, options):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        time.sleep(0.05)
        return reap(pid, options)

    if request.param == "late":
        monkeypatch.setattr(os, "waitpid", reap_late)


@pytest.fixture
async def probe(watcher, tmp_path):
    """A probe whose child ends as the files ``starts`` and ``tries`` say, one number each time."""
    made = GrammarProbe("nowhere")
    made._command = (sys.executable, "-c", CHILD.format(folder=str(tmp_path)))
    yield made
    await made.aclose()


def asked(folder) -> int:
    return len((folder / "asked").read_text().splitlines())


@pytest.mark.parametrize("ending", [KILLED, TERMINATED, CRASHED, RAISED, 0, "half"])
async def test_a_good_schema_passes_though_its_first_child_dies(probe, tmp_path, ending):
    (tmp_path / "tries").write_text(f"{ending}")
    await probe.check(GOOD)
    await probe.check(GOOD)
    assert asked(tmp_path) == 2, "lost, tried again, and remembered"


async def test_two_lost_children_are_an_error_that_is_not_remembered(probe, tmp_path):
    (tmp_path / "tries").write_text(f"{KILLED} {KILLED}")
    with pytest.raises(EngineOverloaded, match=r"without a verdict. Try again") as caught:
        await probe.check(GOOD)
    assert caught.value.retry_after_s
    assert not probe.is_known(GOOD)
    await probe.check(GOOD)
    await probe.check(OTHER)
    assert asked(tmp_path) == 4


@pytest.mark.parametrize("endings", [(ITS_CLOCK,), (CRASHED, ABORTED), (RAISED, RAISED)])
async def test_a_constraint_that_ends_every_child_is_refused_and_remembered(
    probe, tmp_path, endings
):
    (tmp_path / "tries").write_text(" ".join(map(str, endings)))
    for _ in range(3):
        with pytest.raises(RequestRejected, match="too complex"):
            await probe.check(GOOD)
    assert asked(tmp_path) == len(endings)
    await probe.check(OTHER)


async def test_a_child_that_dies_while_nothing_is_asked_is_replaced(probe, tmp_path):
    await probe.check(GOOD)
    probe._child.kill()
    await probe.check(OTHER)


@pytest.mark.parametrize("ending", [RAISED, ABORTED])
async def test_a_child_that_fails_as_it_starts_says_nothing_about_schemas(probe, tmp_path, ending):
    """It has too little memory for its imports, say."""
    (tmp_path / "starts").write_text(f"{ending} {ending}")
    with pytest.raises(EngineOverloaded):
        await probe.check(GOOD)
    assert not probe.is_known(GOOD)
    await probe.check(GOOD)


async def test_a_child_that_knows_no_such_tokenizer_is_not_started_again(probe, tmp_path):
    (tmp_path / "starts").write_text("null null null")
    for _ in range(2):
        with pytest.raises(RequestRejected, match="cannot be checked"):
            await probe.check(GOOD)
    assert (tmp_path / "starts").read_text() == "null null"
