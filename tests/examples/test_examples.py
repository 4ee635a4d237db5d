"""The examples run as they are against the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, serving

FOLDER = ROOT / "docs" / "examples"
EXPECTED = {
    "anthropic_messages.py": ("47", "output_tokens"),
    "curl.sh": ("47", "data: [DONE]", "eaglegate_acceptance_length"),
    "openai_chat.py": ("47", "mean_acceptance_length"),
    "openai_responses.py": ("47",),
    "openai_stream_tools.py": ('get_weather {"city": "Oslo"}', "Oslo."),
    "openai_structured.py": ("answer=",),
}
"""Words that each example prints."""
PLUGIN = "step_counts.py"
"""A plug-in of the engine."""


def test_every_example_is_listed_and_run():
    names = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".sh")}
    assert names == {*EXPECTED, PLUGIN}
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in readme for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_examples_print_an_answer(demo_gateway, name):
    command = ["bash"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run(
        [*command, str(FOLDER / name)],
        env=os.environ | {"EAGLEGATE_URL": demo_gateway.url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in EXPECTED[name]), done.stdout


@pytest.mark.slow
def test_the_plug_in_counts_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This gateway is started as a user would, and spawns its engine."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=os.pathsep)
    config = json.dumps({"eaglegate_plugins": [PLUGIN.removesuffix(".py")]})
    arguments = (f"--additional-config={config}",)
    with serving(tmp_path / "serve.log", arguments, forks=False) as gateway:
        operator = f"{gateway.operator}/debug/speculation"
        before = httpx.get(operator).json()["planner"]["steps_by_batch"]["1"]
        body = {
            "model": "demo",
            "prompt": "Hello",
            "max_tokens": 20,
            "min_tokens": 20,
            "temperature": 0,
        }
        answer = httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        after = httpx.get(operator).json()["planner"]["steps_by_batch"]["1"]
        assert 20 / 4 <= after - before <= 20
