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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eaglegate.lab.improve.config import ImproveConfig
from eaglegate.lab.improve.ledger import Candidate, CandidateVerdict, Ledger
from eaglegate.lab.improve.stages import GatewayClient, LoopStopped, NotYet, StageFailed, Stages
from eaglegate.observability.captures.record import CaptureError
from eaglegate.server.cli.client import CallFailed

log = logging.getLogger(__name__)

WORTH_WAITING = (None, 409, 429, 503)
"""Statuses of a gateway that is away or busy."""


class Switch:
    """Switch that is off while its file exists."""

    def __init__(self, state: Path) -> None:
        self.path = state / "stopped"

    @property
    def is_off(self) -> bool:
        return self.path.exists()

    def turn_off(self, reason: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(reason + "\n", encoding="utf-8")

    def turn_on(self) -> None:
        self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LoopStopped if the switch is off."""
        if self.is_off:
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

    def __init__(self, config: ImproveConfig, stages: Stages) -> None:
        self._config, self._stages = config, stages
        self._ledger = stages.ledger
        self._switch = Switch(config.state)
        self._message = ""

    def run(self, once: bool = False) -> Candidate | None:
        """Run until interrupted or, with ``once``, until one verdict or too little traffic."""
        while True:
            candidate = None if self._switch.is_off else self._ledger.find_open() or self._begin()
            if candidate is None:
                if self._switch.is_off:
                    self._log_change(f"stopped: {self._switch.path} exists")
                if once:
                    return None
                time.sleep(self._config.poll_s)
                continue
            candidate = self._step(candidate)
            if once and candidate.verdict:
                return candidate

    def _begin(self) -> Candidate | None:
        """Add a candidate if there is enough new traffic."""
        end_times = [candidate.ended_at or 0.0 for candidate in self._ledger.list_candidates()]
        if time.time() - max(end_times, default=0.0) < self._config.window.pause_s:
            return None
        windows = self._stages.windows
        try:
            facts = windows.count(self._stages.last_used())
        except (CaptureError, OSError) as error:
            self._log_change(f"the capture cannot be read: {error}")
            return None
        if windows.is_enough(facts):
            return self._ledger.add()
        self._log_change(
            f"waiting for traffic: {facts.answers} answers, {len(facts.clusters)} sessions"
        )
        return None

    def _step(self, candidate: Candidate) -> Candidate:
        """Run one stage, or retry it later."""
        self._log_change(f"candidate {candidate.id}: {candidate.stage}")
        try:
            candidate = self._stages.run(candidate)
        except LoopStopped:
            return candidate
        except (NotYet, CallFailed, StageFailed) as error:
            if isinstance(error, NotYet) or getattr(error, "status", 0) in WORTH_WAITING:
                return self._wait(candidate, str(error))
            return self._count_failure(candidate, str(error))
        if candidate.verdict:
            log.warning("candidate %d %s: %s", candidate.id, candidate.verdict, candidate.reason)
            self._tidy()
        return candidate

    def _wait(self, candidate: Candidate, reason: str) -> Candidate:
        self._log_change(f"candidate {candidate.id} waits: {reason}")
        time.sleep(self._config.poll_s)
        return candidate

    def _count_failure(self, candidate: Candidate, reason: str) -> Candidate:
        candidate = self._ledger.read(candidate.id)
        log.error("candidate %d, %s failed: %s", candidate.id, candidate.stage, reason)
        if candidate.attempts + 1 >= self._config.attempts:
            text = f"{candidate.stage}: {reason}"
            return self._ledger.close(candidate, CandidateVerdict.FAILED, text)
        attempts = candidate.attempts + 1
        candidate = self._ledger.update(candidate, f"failed: {reason}", attempts=attempts)
        time.sleep(self._config.poll_s)
        return candidate

    def _tidy(self) -> None:
        """Delete the windows that no candidate will need again, because they contain text."""
        candidates = self._ledger.list_candidates()
        tuned = [candidate.id for candidate in candidates if not candidate.given]
        history = tuned[-max(1, self._config.window.history) :]
        for candidate in candidates:
            folder = self._stages.folder_of(candidate)
            if candidate.verdict is None or not folder.is_dir():
                continue
            for part in ("parent", "draft/training-state.pt"):
                remove(folder / part)
            if candidate.id not in history:
                remove(folder)

    def _log_change(self, text: str) -> None:
        """Log a text unless it repeats the last one."""
        if text != self._message:
            log.info("%s", text)
            self._message = text


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
