"""The examples run as they are against the demo."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

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


def test_every_example_is_listed_and_run():
    names = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".sh")}
    assert names == EXPECTED.keys()
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
