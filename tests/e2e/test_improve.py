"""The improvement loop on a real engine, killed at every stage: what serves is always promoted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

import httpx
import pytest
import yaml

from eaglegate.lab.improve.ledger import Candidate, CandidateVerdict, Ledger, Stage
from tests.conftest import ADMIN, ROOT, RunningGateway, serving
from tests.engine.draft_copies import make_noise, perturb
from tests.faults.engine_process import children, descendants, kill, title

pytestmark = pytest.mark.slow

TOPICS = ("rain", "a bridge", "the moon", "bread")
Found = TypeVar("Found")


class Traffic:
    """The same greedy chats again and again; every text must be the first one of its question."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.different: list[str] = []
        self.sent = self.failed = 0

    def send(self, url: str) -> None:
        topic = TOPICS[self.sent % len(TOPICS)]
        self.sent += 1
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": f"Explain {topic} to a child."}],
            "temperature": 0,
            "max_tokens": 24,
            "user": f"session-{self.sent}",
        }
        try:
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
            answer.raise_for_status()
        except httpx.HTTPError:
            self.failed += 1  # the engine or the gateway was killed under it
            return
        text = answer.json()["choices"][0]["message"]["content"] or ""
        if self.texts.setdefault(topic, text) != text:
            self.different.append(topic)

    @contextmanager
    def going_on(self, url: str) -> Iterator[None]:
        stop = Event()

        def work() -> None:
            while not stop.wait(0.3):
                self.send(url)

        clients = [Thread(target=work) for _ in range(2)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            stop.set()
            for client in clients:
                client.join()


def write_config(folder: Path) -> Path:
    content = {
        "state": "state",
        "capture": "capture",
        "window": {"answers": 16, "sessions": 16, "pause_s": 86400},
        "tune": {"steps": 2, "nice": 0, "arguments": ["--batch-tokens", "256", "--depths", "2"]},
        "gate": {"limit": 2},
        "canary": {"slot_s": 6, "max_s": 900},
        "poll_s": 0.2,
    }
    file = folder / "improve.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def wait(what: str, read: Callable[[], Found | None], seconds: float = 400) -> Found:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := read():
            return found
        time.sleep(0.2)
    raise AssertionError(f"no {what} in {seconds:.0f} s")


def find_process(gateway: RunningGateway, words: str) -> int | None:
    found = (pid for pid in descendants(gateway.process.pid) if words in title(pid))
    return next(found, None)


def queue(config: Path, draft: Path) -> None:
    line = [sys.executable, "-m", "eaglegate.server", "improve", "--config", str(config)]
    subprocess.run([*line, "--candidate", str(draft), "--force"], cwd=ROOT, check=True)


def read_drafts(gateway: RunningGateway) -> dict[str, Any]:
    return dict(httpx.get(f"{gateway.operator}/admin/draft").json())


def test_the_serving_draft_is_promoted_whatever_is_killed(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    ledger = Ledger(tmp_path / "state" / "ledger.sqlite3")
    flags = ("--capture", str(tmp_path / "capture"), "--capture-share", "1", "--depth=3", *ADMIN)
    flags += ("--draft-store", str(tmp_path / "store"), "--improve", str(config))
    traffic = Traffic()

    def read(number: int) -> Candidate | None:
        return next((one for one in ledger.list_candidates() if one.id == number), None)

    def read_verdict(number: int) -> CandidateVerdict | None:
        one = read(number)
        return one.verdict if one else None

    with serving(tmp_path / "one.log", flags) as gateway:
        promoted = read_drafts(gateway)["promoted"]["fingerprint"]
        for _ in range(20):
            traffic.send(gateway.url)
        tuner = wait("tuner", lambda: find_process(gateway, "eaglegate.lab.training.draft_cli"))
        loop = find_process(gateway, "server improve")
        assert loop is not None
        os.kill(loop, signal.SIGKILL)
        wait("end of the tuner", lambda: tuner not in children(loop) and not title(tuner))
        assert wait("verdict", lambda: read_verdict(1)) is CandidateVerdict.REFUSED
        with traffic.going_on(gateway.url):
            queue(config, perturb(tmp_path / "near"))
            wait("trial", lambda: read_drafts(gateway)["trial"])
            kill(gateway.process.pid)
            assert wait("verdict", lambda: read_verdict(2)) is CandidateVerdict.ROLLED_BACK
        state = read_drafts(gateway)
        assert (state["serving"]["fingerprint"], state["trial"]) == (promoted, False)
        queue(config, make_noise(tmp_path / "noise"))
        wait("canary", lambda: (one := read(3)) and one.stage is Stage.CANARY)
        gateway.process.kill()
        gateway.process.wait()
    with serving(tmp_path / "two.log", flags) as again:
        with traffic.going_on(again.url):
            assert wait("verdict", lambda: read_verdict(3)) is CandidateVerdict.ROLLED_BACK
        state = read_drafts(again)
        assert (state["serving"]["fingerprint"], state["trial"]) == (promoted, False)
    assert not traffic.different
    assert len(traffic.texts) == len(TOPICS)
    one, two, three = ledger.list_candidates()
    assert one.data["answers"] >= 16
    assert one.fingerprint != promoted == one.parent["fingerprint"]
    assert (two.forced, three.forced) == (True, True)
    assert "collapsed" in three.reason
