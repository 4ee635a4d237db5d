"""A gateway loads the features that are off by default only where they are switched on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[3] / "engine" / "demo"
OFF = (
    "features.audit.auditor", "features.audit.judge", "features.canary.arms",
    "features.canary.canary", "features.canary.drafts", "features.canary.rules",
    "features.canary.sequential", "features.canary.workers", "features.capture.audits",
    "features.capture.capture", "features.capture.redaction", "features.doctor.doctor",
    "features.pacing.cadence", "lab", "text.grammars", "text.media.data_url", "text.media.decoder",
    "text.media.decoder_pool", "text.media.fetch", "text.media.formats", "text.media.reader",
    "text.parsing.tags",
)  # fmt: skip
"""Modules of features that no flag has switched on, and those that read images."""
OTHER_DRAFTS = ("block_drafts", "block_rules", "medusa_rules", "speculators_rules", "torch_archive")
"""Rules and files of drafts that are not the demo's."""
CODE = """
import sys
from eaglegate.engine.speculation.drafts.inspection import inspect_draft
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.cli.console import StartupProgress
from eaglegate.server.cli.serve import ServeCommand

target, draft, *flags = sys.argv[1:]
argv = [target, "--upstream", "http://127.0.0.1:9", "--port", "0", "--responses-store", "none"]
argv += ["--tool-call-parser", "hermes"]
progress = StartupProgress()
ServeCommand(read_command_line("serve", [*argv, *flags], progress), progress)
settings = {"model": draft, "method": "eagle3", "num_speculative_tokens": 5}
assert inspect_draft(target, settings).ok
print(*sys.modules)
"""


def list_loaded(*flags: str) -> set[str]:
    """The modules of a gateway in front of a worker, which is ready to start, and of the
    inspection of the demo's draft.
    """
    argv = [sys.executable, "-c", CODE, str(DEMO / "target"), str(DEMO / "eagle3_1"), *flags]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = set(done.stdout.split())
    assert not names & {"torch", "vllm", "transformers"}
    return {name.removeprefix("eaglegate.") for name in names if "eagle" in name}


def test_a_gateway_loads_nothing_that_is_off() -> None:
    loaded = list_loaded()
    assert "server.apis.responses.service" in loaded
    assert "engine.speculation.drafts.inspection.tensor_rules" in loaded
    assert "text.parsing.formats.json_lists" in loaded
    off = (*OFF, *(f"engine.speculation.drafts.inspection.{name}" for name in OTHER_DRAFTS))
    assert [name for name in loaded for one in off if f"{name}.".startswith(f"{one}.")] == []


def test_a_feature_that_is_on_is_loaded(tmp_path: Path) -> None:
    assert "features.capture.capture" in list_loaded("--capture", str(tmp_path / "captured"))
