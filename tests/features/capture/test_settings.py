"""Settings of the capture, checked before any engine starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from eaglegate.features.capture.settings import CaptureSettings
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError


def test_patterns_are_checked_with_the_command_line(tmp_path: Path) -> None:
    line = ["model", "--upstream", "http://127.0.0.1:9", "--capture", str(tmp_path)]
    with pytest.raises(ConfigError, match=r"--capture-redact .* RE2"):
        read_command_line("serve", [*line, "--capture-redact", "(?=x)"], lambda _: None)


def test_patterns_need_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert CaptureSettings(capture=str(tmp_path)).is_on
    with pytest.raises(ConfigError, match=r"--capture-redact .* pip install '.\[re2\]'"):
        CaptureSettings(capture=str(tmp_path), capture_redact=("secret",))
