"""The loop: one candidate after another, from captured traffic to a verdict.

All state is in the ledger and in the candidates' folders, so the loop may be killed at any point.
The switch is a file in the state folder: while it exists, nothing is tuned and no canary runs.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eaglegate.features.capture.record import CaptureError
from eaglegate.lab.improve.client import GatewayClient
from eaglegate.lab.improve.config import ImproveConfig
from eaglegate.lab.improve.ledger import Candidate, CandidateVerdict, Ledger
from eaglegate.lab.improve.stages import LoopStopped, NotYet, StageFailed, Stages
from eaglegate.server.cli.client import CallFailed

log = logging.getLogger(__name__)


class Switch:
    """Switch that is off while its file exists."""

    def __init__(self, state: Path) -> None:
        self.path = state / "stopped"

    @property
    def off(self) -> bool:
        return self.path.exists()

    def turn_off(self, reason: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(reason + "\n", encoding="utf-8")

    def turn_on(self) -> None:
        self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LoopStopped if the switch is off."""
        if self.off:
            raise LoopStopped(f"{self.path} exists")


class LoopRunning(Exception):
    """Another loop is running in this state folder."""


@contextmanager
def lock_state(state: Path) -> Iterator[int]:
    """Lock the folder for one loop. Its commands inherit the lock. Raises LoopRunning."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise LoopRunning(f"another loop runs in {state}") from None
    try:
        yield lock
    finally:
        os.close(lock)


class ImproveLoop:
    """Loop that runs candidates one at a time."""

    def __init__(
        self,
        config: ImproveConfig,
        stages: Stages,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config, self._stages, self._sleep = config, stages, sleep
        self._ledger = stages.ledger
        self._switch = Switch(config.state)
        self._said = ""

    def run(self, once: bool = False) -> Candidate | None:
        """Run until interrupted or, with ``once``, until one verdict or too little traffic."""
        while True:
            one = None if self._switch.off else self._ledger.find_open() or self._begin()
            if one is None:
                if self._switch.off:
                    self._say(f"stopped: {self._switch.path} exists")
                if once:
                    return None
                self._sleep(self._config.poll_s)
                continue
            one = self._step(one)
            if once and one.verdict:
                return one

    def _begin(self) -> Candidate | None:
        """Add a candidate if there is enough new traffic."""
        ended = [one.ended_at or 0.0 for one in self._ledger.list_candidates()]
        if time.time() - max(ended, default=0.0) < self._config.window.pause_s:
            return None
        windows = self._stages.windows
        try:
            facts = windows.count(self._stages.last_used())
        except (CaptureError, OSError) as error:
            self._say(f"the capture cannot be read: {error}")
            return None
        if windows.is_enough(facts):
            return self._ledger.add()
        self._say(f"waiting for traffic: {facts.answers} answers, {len(facts.clusters)} sessions")
        return None

    def _step(self, one: Candidate) -> Candidate:
        """Run one stage, or retry it later."""
        self._say(f"candidate {one.id}: {one.stage}")
        try:
            one = self._stages.run(one)
        except LoopStopped:
            return one
        except NotYet as why:
            return self._wait(one, str(why))
        except CallFailed as error:
            if error.status in (None, 409, 429, 503):
                return self._wait(one, str(error))
            return self._count_failure(one, str(error))
        except StageFailed as error:
            return self._count_failure(one, str(error))
        if one.verdict:
            log.warning("candidate %d %s: %s", one.id, one.verdict, one.reason)
            self._tidy()
        return one

    def _wait(self, one: Candidate, why: str) -> Candidate:
        self._say(f"candidate {one.id} waits: {why}")
        self._sleep(self._config.poll_s)
        return one

    def _count_failure(self, one: Candidate, why: str) -> Candidate:
        one = self._ledger.read(one.id)
        log.error("candidate %d, %s failed: %s", one.id, one.stage, why)
        if one.attempts + 1 >= self._config.attempts:
            return self._ledger.close(one, CandidateVerdict.FAILED, f"{one.stage}: {why}")
        one = self._ledger.update(one, f"failed: {why}", attempts=one.attempts + 1)
        self._sleep(self._config.poll_s)
        return one

    def _tidy(self) -> None:
        """Delete the windows that no candidate will need again, because they contain text."""
        tuned = [one for one in self._ledger.list_candidates() if not one.given]
        kept = {one.id for one in tuned[-max(1, self._config.window.history) :]}
        for one in self._ledger.list_candidates():
            folder = self._stages.folder_of(one)
            if one.verdict is None or not folder.is_dir():
                continue
            for part in ("parent", "draft/training-state.pt"):
                remove(folder / part)
            if one.id not in kept:
                remove(folder)

    def _say(self, text: str) -> None:
        """Log a text unless it repeats the last one."""
        if text != self._said:
            log.info("%s", text)
            self._said = text


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_loop(
    config: ImproveConfig, url: str, key: str | None, lock: int | None = None
) -> ImproveLoop:
    ledger = Ledger(config.state / "ledger.sqlite3")
    switch = Switch(config.state)
    return ImproveLoop(config, Stages(config, ledger, GatewayClient(url, key), switch.check, lock))
