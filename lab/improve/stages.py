"""The stages of a candidate: collect, tune, compare, canary. Each may be killed and run again.

Tuning and comparing are the commands ``eaglegate-train-draft`` and ``eaglegate drafts compare``,
run in separate, niced processes; both resume an interrupted run. The canary runs in the gateway.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eaglegate.engine.errors import DraftRefused
from eaglegate.engine.speculation.drafts.files import find_folder, fingerprint_draft, list_files
from eaglegate.features.canary.outcomes import CanaryVerdict
from eaglegate.lab.improve.config import ImproveConfig
from eaglegate.lab.improve.gate import CANDIDATE, PARENT, judge_comparison
from eaglegate.lab.improve.ledger import Candidate, CandidateVerdict, Ledger, Stage
from eaglegate.lab.improve.process import become_background
from eaglegate.lab.improve.windows import JUDGE, NEW, OLD, TrafficWindows
from eaglegate.observability.captures.record import CaptureError
from eaglegate.server.cli.client import CallFailed, send

COMMAND_POLL_S = 0.2
TUNER = "eaglegate.lab.training.draft_cli"
VERDICTS = {
    CanaryVerdict.PROMOTE: CandidateVerdict.PROMOTED,
    CanaryVerdict.ROLL_BACK: CandidateVerdict.ROLLED_BACK,
    CanaryVerdict.UNDECIDED: CandidateVerdict.UNDECIDED,
}


class GatewayClient:
    """Client of one gateway's operator endpoints. Every method raises CallFailed."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url, self._key = url.rstrip("/"), key

    def find_promoted(self) -> Mapping[str, Any]:
        """Return the promoted draft: ``fingerprint``, ``path``, ``source``."""
        draft = send(f"{self.url}/admin/draft", None, self._key)["promoted"]
        if not draft:
            raise CallFailed(f"{self.url} serves no draft that can be exchanged.", 409)
        return dict(draft)

    def find_canary(self) -> Mapping[str, Any] | None:
        """Return the running canary or the last one; None before the first."""
        canary = send(f"{self.url}/admin/canary", None, self._key)["canary"]
        return None if canary is None else dict(canary)

    def start_canary(self, path: str, rules: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"path": path, **rules}
        return dict(send(f"{self.url}/admin/canary", body, self._key)["canary"])

    def stop_canary(self) -> None:
        send(f"{self.url}/admin/canary", None, self._key, "DELETE")


class StageFailed(Exception):
    """Failure of a stage, which may succeed the next time."""


class LoopStopped(Exception):
    """The loop's switch is off."""


class NotYet(Exception):
    """The stage has to wait. The message gives the reason."""


class Stages:
    """Stages of candidates. ``check`` raises LoopStopped."""

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

    def folder_of(self, candidate: Candidate) -> Path:
        return self.config.state / "candidates" / f"{candidate.id:05d}"

    def run(self, candidate: Candidate) -> Candidate:
        """Run the next stage. Raises StageFailed, NotYet, LoopStopped and CallFailed."""
        stages = {
            Stage.COLLECT: self.collect,
            Stage.TUNE: self.tune,
            Stage.COMPARE: self.compare,
            Stage.CANARY: self.try_live,
        }
        try:
            return stages[candidate.stage](candidate)
        except (CaptureError, DraftRefused, OSError) as error:
            raise StageFailed(str(error)) from error

    def last_used(self) -> float:
        """Return the arrival of the newest request in the last tuned window, in Unix time."""
        arrivals = (
            candidate.data.get("until", 0.0)
            for candidate in self.ledger.list_candidates()
            if not candidate.given
        )
        return max(arrivals, default=0.0)

    def collect(self, candidate: Candidate) -> Candidate:
        """Copy the promoted draft and freeze the window."""
        folder = self.folder_of(candidate)
        draft = self.client.find_promoted()
        parent = copy_draft(Path(draft["path"]), folder / "parent")
        windows = self._find_earlier(candidate)
        data = self.windows.freeze(folder / "window", self.last_used(), windows)
        origin = {"fingerprint": parent, "source": draft["source"]}
        text = f"{data['answers']} answers of {data['sessions']} sessions"
        if candidate.given:
            fingerprint = copy_draft(Path(candidate.given), folder / "draft")
            return self.ledger.advance(
                candidate, Stage.COMPARE, text, parent=origin, data=data, fingerprint=fingerprint
            )
        return self.ledger.advance(candidate, Stage.TUNE, text, parent=origin, data=data)

    def _find_earlier(self, candidate: Candidate) -> list[Path]:
        """Return the windows of earlier candidates, newest first."""
        windows = [
            self.folder_of(predecessor) / "window"
            for predecessor in reversed(self.ledger.list_candidates())
            if predecessor.id < candidate.id and not predecessor.given
        ]
        return [path for path in windows if path.is_dir()][: self.config.window.history]

    def tune(self, candidate: Candidate) -> Candidate:
        folder = self.folder_of(candidate)
        self.run_command(self.make_tune_command(folder), folder / "tune.log")
        fingerprint = fingerprint_draft(find_folder(str(folder / "draft")))
        if fingerprint == candidate.parent["fingerprint"]:
            return self.ledger.close(candidate, CandidateVerdict.REFUSED, "tuning changed nothing")
        return self.ledger.advance(candidate, Stage.COMPARE, "tuned", fingerprint=fingerprint)

    def make_tune_command(self, folder: Path) -> list[str]:
        settings, window = self.config.tune, folder / "window"
        sources = [path for path in (window / OLD, self.config.keep) if path and not is_empty(path)]
        command: list[Any] = [sys.executable, "-m", TUNER, "--target", self.config.target]
        command += ["--init", folder / "parent", "--data", window / NEW]
        for source in sources:
            command += ["--keep", source]
        command += ["--keep-share", settings.keep_share] if sources else []
        command += ["--steps", settings.steps, "--threads", settings.threads]
        command += ["--out", folder / "draft", *self._key_arguments(), *settings.arguments]
        return list(map(str, command))

    def _key_arguments(self) -> Sequence[str]:
        path = self.config.key_file
        return ("--key-file", str(path)) if path else ()

    def compare(self, candidate: Candidate) -> Candidate:
        """Compare the drafts on sessions that no draft was trained on."""
        folder = self.folder_of(candidate)
        self.run_command(self.make_compare_command(folder), folder / "compare.log")
        report = json.loads((folder / "compare" / "report.json").read_text(encoding="utf-8"))
        findings = judge_comparison(report, self.config.gate)
        lengths = {
            label: describe_lengths(report["drafts"][label]) for label in (PARENT, CANDIDATE)
        }
        offline = asdict(findings) | {"answers": report["answers"], "acceptance": lengths}
        text = findings.reason
        if not findings.passed:
            if not candidate.forced:
                verdict = CandidateVerdict.REFUSED
                return self.ledger.close(candidate, verdict, text, offline=offline)
            text = f"forced past a failed comparison: {text}"
        return self.ledger.advance(candidate, Stage.CANARY, text, offline=offline)

    def make_compare_command(self, folder: Path) -> list[str]:
        gate = self.config.gate
        command: list[Any] = [sys.executable, "-m", "eaglegate.server", "drafts", "compare"]
        command += [folder / "window" / JUDGE, "--target", self.config.target]
        command += ["--out", folder / "compare", "--draft", f"{PARENT}={folder / 'parent'}"]
        command += ["--draft", f"{CANDIDATE}={folder / 'draft'}", "--depth", gate.depth]
        command += ["--threads", gate.threads, *self._key_arguments()]
        command += ["--limit", gate.limit] if gate.limit else []
        return list(map(str, command))

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
            while process.poll() is None:
                self._check()
                time.sleep(COMMAND_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            raise StageFailed(f"{command[2]} ended with {process.returncode}: {_read_end(log)}")

    def try_live(self, candidate: Candidate) -> Candidate:
        """Start the canary and wait for its verdict. After a restart, find it or start another."""
        while True:
            fingerprint = self.client.find_promoted()["fingerprint"]
            canary = self.client.find_canary()
            if fingerprint == candidate.fingerprint:
                live = _describe_live(canary) if is_of(canary, candidate) else {}
                reason = live.get("reason") or "the gateway had promoted it"
                verdict = CandidateVerdict.PROMOTED
                return self.ledger.close(candidate, verdict, reason, live=live or candidate.live)
            if fingerprint != candidate.parent["fingerprint"]:
                self._stop_canary(candidate)
                reason = f"another draft was promoted in the meantime: {fingerprint}"
                return self.ledger.close(candidate, CandidateVerdict.UNDECIDED, reason)
            if (
                canary is None
                or not is_of(canary, candidate)
                or _was_switched_off(canary, candidate)
            ):
                if canary is not None and canary["running"]:
                    raise NotYet("another canary is running")
                candidate = self._start_canary(candidate)
                if candidate.verdict:
                    return candidate
            elif not canary["running"]:
                return self._conclude(candidate, canary)
            else:
                candidate = self.ledger.update(candidate, live=_describe_live(canary))
            self._wait(candidate)

    def _wait(self, candidate: Candidate) -> None:
        time.sleep(self.config.poll_s)
        try:
            self._check()
        except LoopStopped:
            self._stop_canary(candidate)
            raise

    def _stop_canary(self, candidate: Candidate) -> None:
        canary = self.client.find_canary()
        if canary is not None and canary["running"] and is_of(canary, candidate):
            self.ledger.update(
                candidate, "canary stopped", live={"switched_off": canary["started_at"]}
            )
            self.client.stop_canary()

    def _start_canary(self, candidate: Candidate) -> Candidate:
        """Start a canary. The attempt is counted first, so crashes cannot repeat it forever."""
        if candidate.attempts >= self.config.attempts:
            raise StageFailed(f"{candidate.attempts} canaries started and none finished")
        candidate = self.ledger.update(candidate, "canary starts", attempts=candidate.attempts + 1)
        path = str((self.folder_of(candidate) / "draft").resolve())
        try:
            self.client.start_canary(path, self.config.canary)
        except CallFailed as error:
            if error.status == 409:
                self.ledger.update(candidate, attempts=candidate.attempts - 1)
                raise NotYet(str(error)) from error
            if error.status == 400:
                return self.ledger.close(candidate, CandidateVerdict.REFUSED, str(error))
            raise
        return candidate

    def _conclude(self, candidate: Candidate, canary: Mapping[str, Any]) -> Candidate:
        verdict, reason = CandidateVerdict.UNDECIDED, "an operator stopped it"
        if canary["ended"]:
            verdict, reason = VERDICTS[CanaryVerdict(canary["verdict"])], canary["reason"]
            promoted = self.client.find_promoted()["fingerprint"]
            if verdict is CandidateVerdict.PROMOTED and promoted != candidate.fingerprint:
                verdict = CandidateVerdict.UNDECIDED
                reason = "the canary's verdict was promote, but the gateway could not promote it"
        return self.ledger.close(candidate, verdict, reason, live=_describe_live(canary))


def is_of(canary: Mapping[str, Any] | None, candidate: Candidate) -> bool:
    """Return True if this canary tries this candidate."""
    return (
        canary is not None
        and canary["candidate"] == candidate.fingerprint
        and canary["started_at"] >= candidate.created_at
    )


def _was_switched_off(canary: Mapping[str, Any], candidate: Candidate) -> bool:
    is_stopped = candidate.live.get("switched_off") == canary["started_at"]
    return is_stopped and not canary["running"] and not canary["ended"]


def _describe_live(canary: Mapping[str, Any] | None) -> dict[str, Any]:
    exclusions = ("path", "candidate", "control", "running")
    return {name: value for name, value in (canary or {}).items() if name not in exclusions}


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
