"""The stages of a candidate: collect, tune, compare, canary. Each may be killed and run again.

Tuning and comparing are the commands ``eaglegate-train-draft`` and ``eaglegate drafts compare``,
run in separate, niced processes; both resume an interrupted run. The canary runs in the gateway.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglegate.engine.errors import DraftRefused
from eaglegate.engine.speculation.drafts import find_folder, fingerprint_draft, list_files
from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.features.capture.record import CaptureError
from eaglegate.lab.improve.client import GatewayClient
from eaglegate.lab.improve.config import ImproveConfig
from eaglegate.lab.improve.gate import CANDIDATE, PARENT, judge_comparison
from eaglegate.lab.improve.ledger import Candidate, CandidateVerdict, Ledger, Stage
from eaglegate.lab.improve.process import become_background
from eaglegate.lab.improve.windows import JUDGE, NEW, OLD, TrafficWindows
from eaglegate.server.cli.client import CallFailed

logger = logging.getLogger(__name__)

COMMAND_POLL_S = 0.2
VERDICTS = {
    CanaryVerdict.PROMOTE: CandidateVerdict.PROMOTED,
    CanaryVerdict.ROLL_BACK: CandidateVerdict.ROLLED_BACK,
    CanaryVerdict.UNDECIDED: CandidateVerdict.UNDECIDED,
}


class StageFailed(Exception):
    """Failure of a stage, which may succeed the next time."""


class LoopStopped(Exception):
    """The loop's switch is off."""


class NotYet(Exception):
    """The stage has to wait. The message gives the reason."""


class Stages:
    """Stages of candidates. ``check`` raises LoopStopped."""

    tell_every_s = 15.0
    """Time between two log lines with a command's output, in seconds."""

    def __init__(
        self,
        config: ImproveConfig,
        ledger: Ledger,
        client: GatewayClient,
        check: Callable[[], None] = lambda: None,
        lock: int | None = None,
    ) -> None:
        self.config, self.ledger, self.client = config, ledger, client
        self._check, self._lock = check, lock
        self.windows = TrafficWindows(config)

    def folder_of(self, one: Candidate) -> Path:
        return self.config.state / "candidates" / f"{one.id:05d}"

    def run(self, one: Candidate) -> Candidate:
        """Run the next stage. Raises StageFailed, NotYet, LoopStopped and CallFailed."""
        stages = {
            Stage.COLLECT: self.collect,
            Stage.TUNE: self.tune,
            Stage.COMPARE: self.compare,
            Stage.CANARY: self.try_live,
        }
        try:
            return stages[one.stage](one)
        except (CaptureError, DraftRefused, OSError) as error:
            raise StageFailed(str(error)) from error

    def last_used(self) -> float:
        """Return the arrival of the newest request in the last tuned window, in Unix time."""
        used = (
            one.data.get("until", 0.0) for one in self.ledger.list_candidates() if not one.given
        )
        return max(used, default=0.0)

    def collect(self, one: Candidate) -> Candidate:
        """Copy the promoted draft and freeze the window."""
        folder = self.folder_of(one)
        promoted = self.client.find_promoted()
        parent = copy_draft(Path(promoted["path"]), folder / "parent")
        earlier = self._find_earlier(one)
        data = self.windows.freeze(folder / "window", self.last_used(), earlier)
        known = {"fingerprint": parent, "source": promoted["source"]}
        text = f"{data['answers']} answers of {data['sessions']} sessions"
        if one.given:
            fingerprint = copy_draft(Path(one.given), folder / "draft")
            return self.ledger.advance(
                one, Stage.COMPARE, text, parent=known, data=data, fingerprint=fingerprint
            )
        return self.ledger.advance(one, Stage.TUNE, text, parent=known, data=data)

    def _find_earlier(self, one: Candidate) -> list[Path]:
        """Return the windows of earlier candidates, newest first."""
        before = [
            self.folder_of(other) / "window"
            for other in reversed(self.ledger.list_candidates())
            if other.id < one.id and not other.given
        ]
        return [path for path in before if path.is_dir()][: self.config.window.history]

    def tune(self, one: Candidate) -> Candidate:
        folder = self.folder_of(one)
        self.run_command(self.make_tune_command(folder), folder / "tune.log")
        fingerprint = fingerprint_draft(find_folder(str(folder / "draft")))
        if fingerprint == one.parent["fingerprint"]:
            return self.ledger.close(one, CandidateVerdict.REFUSED, "tuning changed nothing")
        return self.ledger.advance(one, Stage.COMPARE, "tuned", fingerprint=fingerprint)

    def make_tune_command(self, folder: Path) -> list[str]:
        how, window = self.config.tune, folder / "window"
        folders = (window / OLD, self.config.keep)
        older = [str(one) for one in folders if one is not None and not is_empty(one)]
        keep = [part for one in older for part in ("--keep", one)]
        return [
            *(
                sys.executable,
                "-m",
                "eaglegate.lab.training.draft_cli",
                "--target",
                str(self.config.target),
            ),
            *("--init", str(folder / "parent"), "--data", str(window / NEW)),
            *(keep and (*keep, "--keep-share", str(how.keep_share))),
            *("--steps", str(how.steps), "--threads", str(how.threads)),
            *("--out", str(folder / "draft"), *self._key_arguments(), *how.arguments),
        ]

    def _key_arguments(self) -> Sequence[str]:
        path = self.config.key_file
        return ("--key-file", str(path)) if path else ()

    def compare(self, one: Candidate) -> Candidate:
        """Compare the drafts on sessions that no draft was trained on."""
        folder = self.folder_of(one)
        self.run_command(self.make_compare_command(folder), folder / "compare.log")
        report = json.loads((folder / "compare" / "report.json").read_text(encoding="utf-8"))
        found = judge_comparison(report, self.config.gate)
        lengths = {
            label: describe_lengths(report["drafts"][label]) for label in (PARENT, CANDIDATE)
        }
        offline = found.describe() | {"answers": report["answers"], "acceptance": lengths}
        if not found.passed and not one.forced:
            return self.ledger.close(one, CandidateVerdict.REFUSED, found.reason, offline=offline)
        text = found.reason if found.passed else f"forced past a failed comparison: {found.reason}"
        return self.ledger.advance(one, Stage.CANARY, text, offline=offline)

    def make_compare_command(self, folder: Path) -> list[str]:
        gate = self.config.gate
        return [
            *(
                sys.executable,
                "-m",
                "eaglegate.server",
                "drafts",
                "compare",
                str(folder / "window" / JUDGE),
            ),
            *("--target", str(self.config.target), "--out", str(folder / "compare")),
            *("--draft", f"{PARENT}={folder / 'parent'}"),
            *("--draft", f"{CANDIDATE}={folder / 'draft'}"),
            *("--depth", str(gate.depth), "--threads", str(gate.threads), *self._key_arguments()),
            *(("--limit", str(gate.limit)) if gate.limit else ()),
        ]

    def run_command(self, command: Sequence[str], log: Path) -> None:
        """Run a command. Raises StageFailed with the end of its log, or LoopStopped after ending
        it.
        """
        threads = str(self.config.tune.threads)
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                env=os.environ | {"OMP_NUM_THREADS": threads},
                pass_fds=() if self._lock is None else (self._lock,),
                preexec_fn=lambda: become_background(self.config.tune.nice),
            )
        try:
            began = said = time.monotonic()
            while process.poll() is None:
                self._check()
                time.sleep(COMMAND_POLL_S)
                if (now := time.monotonic()) - said >= self.tell_every_s:
                    said = now
                    logger.info("%s for %.0f s: %s", command[2], now - began, _read_end(log))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            raise StageFailed(f"{command[2]} ended with {process.returncode}: {_read_end(log)}")

    def try_live(self, one: Candidate) -> Candidate:
        """Start the canary and wait for its verdict. After a restart, find it or start another."""
        while True:
            promoted = self.client.find_promoted()["fingerprint"]
            canary = self.client.find_canary()
            if promoted == one.fingerprint:
                live = _describe_live(canary) if is_of(canary, one) else {}
                reason = live.get("reason") or "the gateway had promoted it"
                return self.ledger.close(
                    one, CandidateVerdict.PROMOTED, reason, live=live or one.live
                )
            if promoted != one.parent["fingerprint"]:
                reason = f"another draft was promoted in the meantime: {promoted}"
                self._stop_canary(one)
                return self.ledger.close(one, CandidateVerdict.UNDECIDED, reason)
            if canary is None or not is_of(canary, one) or _was_switched_off(canary, one):
                if canary is not None and canary["running"]:
                    raise NotYet("another canary is running")
                one = self._start_canary(one)
                if one.verdict:
                    return one
            elif not canary["running"]:
                return self._conclude(one, canary)
            else:
                one = self.ledger.update(one, live=_describe_live(canary))
            self._wait(one)

    def _wait(self, one: Candidate) -> None:
        time.sleep(self.config.poll_s)
        try:
            self._check()
        except LoopStopped:
            self._stop_canary(one)
            raise

    def _stop_canary(self, one: Candidate) -> None:
        canary = self.client.find_canary()
        if canary is not None and canary["running"] and is_of(canary, one):
            self.ledger.update(one, "canary stopped", live={"switched_off": canary["started_at"]})
            self.client.stop_canary()

    def _start_canary(self, one: Candidate) -> Candidate:
        """Start a canary. The attempt is counted first, so crashes cannot repeat it forever."""
        if one.attempts >= self.config.attempts:
            raise StageFailed(f"{one.attempts} canaries started and none finished")
        one = self.ledger.update(one, "canary starts", attempts=one.attempts + 1)
        path = str((self.folder_of(one) / "draft").resolve())
        try:
            self.client.start_canary(path, self.config.canary)
        except CallFailed as error:
            if error.status == 409:
                self.ledger.update(one, attempts=one.attempts - 1)
                raise NotYet(str(error)) from error
            if error.status == 400:
                return self.ledger.close(one, CandidateVerdict.REFUSED, str(error))
            raise
        return one

    def _conclude(self, one: Candidate, canary: Mapping[str, Any]) -> Candidate:
        live = _describe_live(canary)
        if not canary["ended"]:
            return self.ledger.close(
                one, CandidateVerdict.UNDECIDED, "an operator stopped it", live=live
            )
        verdict = VERDICTS[CanaryVerdict(canary["verdict"])]
        if verdict is not CandidateVerdict.PROMOTED:
            return self.ledger.close(one, verdict, canary["reason"], live=live)
        if self.client.find_promoted()["fingerprint"] == one.fingerprint:
            return self.ledger.close(one, verdict, canary["reason"], live=live)
        reason = "the canary's verdict was promote, but the gateway could not promote it"
        return self.ledger.close(one, CandidateVerdict.UNDECIDED, reason, live=live)


def is_of(canary: Mapping[str, Any] | None, one: Candidate) -> bool:
    """Return True if this canary tries this candidate."""
    if canary is None:
        return False
    return bool(canary["candidate"] == one.fingerprint and canary["started_at"] >= one.created_at)


def _was_switched_off(canary: Mapping[str, Any], one: Candidate) -> bool:
    stopped = one.live.get("switched_off") == canary["started_at"]
    return stopped and not canary["running"] and not canary["ended"]


def _describe_live(canary: Mapping[str, Any] | None) -> dict[str, Any]:
    left_out = ("path", "candidate", "control", "running")
    return {name: value for name, value in (canary or {}).items() if name not in left_out}


def describe_lengths(draft: Mapping[str, Any]) -> dict[str, Any]:
    """Return the acceptance length by slice at the deepest depth; empty for a refused draft."""
    slices = draft.get("slices", {})
    return {name: list(lengths.values())[-1] for name, lengths in slices.items()}


def copy_draft(source: Path, goal: Path) -> str:
    """Copy a draft and return its fingerprint. Raises DraftRefused and OSError."""
    folder = find_folder(str(source))
    goal.mkdir(parents=True, exist_ok=True)
    for file in list_files(folder):
        shutil.copyfile(file, goal / file.name)
    return fingerprint_draft(goal)


def is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _read_end(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "no output"
