"""Short of memory, new work is refused, and taken again when there is room."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access import memory
from eaglegate.server.access.memory import (
    GIB,
    ControlGroup,
    MemoryMonitor,
    ProcessTree,
    find_control_groups,
    find_sources,
)
from eaglegate.text.events import FinishReason
from tests.server.conftest import wait_until

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


class Tank:
    limit = 10 * GIB

    def __init__(self, level=0.0):
        self.level = level

    def used(self):
        return int(self.level * GIB)


@pytest.fixture
def tank(lab):
    tank = Tank(4.0)
    lab.gateway.memory = MemoryMonitor([tank])
    lab.gateway.memory.settle()
    return tank


def fill(lab, tank, level):
    tank.level = level
    lab.gateway.memory.sample()


async def test_new_work_is_refused_over_the_bound_and_taken_again_below_it(lab, tank):
    word = Step(tuple(lab.renderer.encode("word", False)))
    lab.engine.script = [word, Pause(0.2), Step(word.token_ids, finish=FinishReason.STOP)]
    running = asyncio.create_task(lab.chat(stream=True))
    await wait_until(lambda: lab.gateway.in_flight)
    fill(lab, tank, 8.9)
    assert (await lab.get("/ready")).status == 200
    fill(lab, tank, 9.1)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
                 "/tokenize", "/v1/conversations"):  # fmt: skip
        refused = await lab.post(path, CHAT)
        assert refused.status == 503, path
        assert int(refused.headers["retry-after"]) >= 1
        assert "9.10 of 10.00 GiB" in refused.json["error"]["message"]
    assert refused.json["error"]["code"] == "memory_pressure"
    ready = await lab.get("/ready")
    assert (ready.status, ready.json["status"]) == (503, "shedding")
    assert "9.10 of 10.00 GiB" in ready.json["reason"]
    assert (await lab.get("/v1/models")).status == 200
    assert (await lab.delete("/v1/responses/resp_x")).status == 404, "what frees memory is done"
    fill(lab, tank, 8.7)
    assert (await lab.post("/v1/chat/completions", CHAT)).status == 503, "not at once"
    fill(lab, tank, 8.4)
    assert (await lab.get("/ready")).status == 200
    assert (await lab.post("/tokenize", {"prompt": "x"})).status == 200
    assert (await running).done, "what ran came to its end"
    assert lab.gateway.in_flight == 0


async def test_a_request_alone_is_served_although_memory_is_short(lab, tank):
    lab.says("x")
    fill(lab, tank, 9.9)
    assert lab.gateway.memory.shedding
    assert (await lab.get("/ready")).status == 200
    assert (await lab.chat()).status == 200


def test_an_engine_that_fills_most_of_it_from_the_start_is_served_with():
    tank = Tank(9.2)
    watch = MemoryMonitor([tank])
    watch.settle()
    watch.sample()
    assert not watch.shedding
    tank.level = 9.65
    watch.sample()
    assert watch.shedding


@pytest.mark.parametrize(("level", "seconds"), [(1.0, 2.0), (8.75, 1.0), (8.99, 0.25), (9.5, 0.25)])
def test_far_from_the_bound_memory_is_looked_at_seldom(level, seconds):
    watch = MemoryMonitor([Tank(level)])
    watch.sample()
    assert watch.next_look_s() == pytest.approx(seconds, abs=0.001)


GROW = """
import sys
from multiprocessing import get_context
def hold():
    kept = bytearray(64 << 20); kept[::4096] = b"x" * len(kept[::4096])
    print("held", flush=True); sys.stdin.readline()
if __name__ == "__main__":
    import os
    hold() if os.fork() == 0 else os.wait()
"""


def test_the_memory_of_a_process_and_its_children_is_counted():
    process = subprocess.Popen(
        [sys.executable, "-c", GROW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    tree = ProcessTree(GIB, process.pid)
    assert 64 << 20 < tree.used() < 200 << 20
    process.communicate("\n")
    assert tree.used() == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_s_limit_is_found_and_its_cache_left_out(tmp_path, version):
    top = tmp_path / "memory" if version == 1 else tmp_path
    inner = top / "pod" / "gateway"
    inner.mkdir(parents=True)
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
             2: ("memory.max", "memory.current", "inactive_file")}[version]  # fmt: skip
    (inner / names[0]).write_text("9223372036854771712\n" if version == 1 else "max\n")
    for folder, limit in ((inner.parent, 1 << 30), (top, 1 << 29)):
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text("1000\n")
        (folder / "memory.stat").write_text(f"cache 7\n{names[2]} 300\n")
    line = "4:cpu,memory:/pod/gateway" if version == 1 else "0::/pod/gateway"
    found = list(find_control_groups(f"9:name=systemd:/\n{line}\n", tmp_path))
    assert [(group.limit, group.used()) for group in found] == [(1 << 30, 700), (1 << 29, 700)]


def test_memory_sources_follow_the_setting():
    assert find_sources(0) == []
    assert [type(source) for source in find_sources(1 << 40)][-1] is ProcessTree
    watched = find_sources(None)
    assert len(watched) == 1
    assert isinstance(watched[0], ControlGroup | ProcessTree)


async def test_the_watch_looks_by_itself(monkeypatch):
    monkeypatch.setattr(memory, "EVERY_S", 0.01)
    relieved = []
    monkeypatch.setattr(memory, "release_free_memory", lambda: relieved.append(1))
    watch = MemoryMonitor([Tank(9.5)])
    watching = asyncio.create_task(watch.run())
    await wait_until(lambda: relieved)
    assert watch.shedding
    watching.cancel()
