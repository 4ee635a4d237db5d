"""The report that `eaglegate check` prints, and its exit status."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.fleet.worker import WorkerReport
from eaglegate.engine.machine import GIB, Machine
from eaglegate.engine.preflight import EnginePlan
from eaglegate.engine.scripted import DEFAULT_INFO
from eaglegate.server.__main__ import main
from eaglegate.server.backends.plan import plan_gateway
from eaglegate.server.cli.check import CheckReport, check, check_workers
from eaglegate.server.settings import Settings
from tests.engine.speculation.test_drafts import change_config, copy_draft

pytestmark = pytest.mark.thorough

DEMO = Path(__file__).parents[3] / "engine" / "demo"
LAPTOP = Machine("cpu", cores=2, free_memory=16 * GIB)


def plan(**settings: object) -> EnginePlan:
    """The demo with its draft, and these settings of speculation."""
    speculation = {
        "model": str(DEMO / "eagle3_1"),
        "method": "eagle3",
        "num_speculative_tokens": 3,
    }
    return EnginePlan(str(DEMO / "target"), speculative_config=speculation | settings)


def look(engine: EnginePlan | None = None, **settings: Any) -> CheckReport:
    gateway = Settings(**{"port": 0, "tool_call_parser": "hermes"} | settings)
    return check(engine or plan(), plan_gateway(gateway, None), LAPTOP)


def test_a_command_line_that_can_start():
    found = look()
    assert found.status == 0
    assert "EAGLE 3.1: fc_norm x3, norm_output" in found.text
    assert "tool calls  hermes" in found.text
    assert found.text.endswith("Nothing found would stop it from starting here.")


def test_an_unknown_parser_lists_the_names():
    found = look(tool_call_parser="hermess")
    assert found.status == 1
    assert "- unknown tool call parser 'hermess': use one of apertus, " in found.text


def test_a_depth_above_the_draft_s():
    assert look(depth="3").status == 0
    found = look(depth="9")
    assert found.status == 1
    assert "- --depth must be from 0 to 3, num_speculative_tokens of the draft" in found.text
    assert "or auto; given 9" in found.text


def test_a_busy_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = look(port=port)
    assert found.status == 1
    assert f"port {port} on 127.0.0.1 is in use" in found.text


def test_obstacles_are_reported_apart_from_invalid_command_lines():
    found = look(plan(num_speculative_tokens=0))
    assert found.status == 1
    assert "The command line is valid. It cannot start here:" in found.text
    assert "num_speculative_tokens is 0" in found.text


def test_a_lossy_setting_is_told_and_refused_on_request():
    lossy = plan(rejection_sample_method="synthetic")
    told = look(lossy)
    assert told.status == 0
    assert "warning [lossy] LOSSY: rejection_sample_method 'synthetic'" in told.text
    refused = look(lossy, require_lossless=True)
    assert refused.status == 1
    assert "- --require-lossless: rejection_sample_method 'synthetic'" in refused.text
    assert look(require_lossless=True).status == 0


def test_adapters_are_looked_at(tmp_path, capfd):
    """The command checks the adapters that ``--lora-modules`` names."""
    pytest.importorskip("vllm")
    folder = tmp_path / "sql"
    folder.mkdir()
    line = ["check", str(DEMO / "target"), "--lora-modules", f"sql={folder}", "--port", "0"]
    assert main(line) == 1
    assert "--lora-modules needs --enable-lora" in capfd.readouterr().err
    assert main([*line, "--enable-lora"]) == 1
    assert "holds no adapter_config.json" in capfd.readouterr().err


def test_settings_in_effect_are_shown_without_secrets():
    given = Settings(max_running=7, api_key=("sk-very-secret",), upstream="http://me:pw@worker:1")
    text = check(plan(), plan_gateway(given, None), LAPTOP).text
    assert "--max-running  7" in text
    assert "--api-key      (secret)" in text
    assert "sk-very-secret" not in text
    assert "me:pw" not in text
    for same in (Settings(), Settings(port=8000, depth="auto")):
        text = check(plan(), plan_gateway(same, None), LAPTOP).text
        assert "all have their defaults" in text


def test_versions_of_workers_are_shown_and_compared():
    reports = {
        name: WorkerReport(replace(DEFAULT_INFO, details={"worker": name, "version": version}))
        for name, version in (("a:1", "0.32.0"), ("b:1", "0.33.0"))
    }
    gateway_plan = plan_gateway(Settings(port=0), None)
    text = check_workers({}, reports, gateway_plan).text
    assert "version      0.33.0" in text
    assert "the workers have several versions: 0.32.0 (a:1); 0.33.0 (b:1)" in text
    alone = check_workers({}, {"a:1": reports["a:1"]}, gateway_plan).text
    assert "several versions" not in alone


def test_one_fault_with_many_consequences_is_told_once(tmp_path):
    """A wrong size contradicts the shape of every tensor."""
    draft = copy_draft(tmp_path / "draft")
    change_config(draft, hidden_size=512)
    found = look(plan(model=str(draft)))
    assert found.text.count("[tensor-shape]") == 1
    assert "(and 14 more of its kind)" in found.text
    (stop,) = (line for line in found.text.splitlines() if line.startswith("  - "))
    assert "[target-width]" in stop
    assert "(`eaglegate check` shows 4 more)" in stop
