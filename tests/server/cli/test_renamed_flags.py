"""A former name of a setting works wherever settings are given, with a notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from eaglegate import __version__
from eaglegate.server import flags
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.flags import RENAMED, Renaming, rename_flag
from eaglegate.server.settings import Settings

ARGV = ["some/model", "--upstream", "http://127.0.0.1:1"]


@pytest.fixture(autouse=True)
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    former = {
        "parallel": "max_running",
        "inspect": "preflight",
        "workers": "upstream",
    }
    table = {name: Renaming(present, "0.3.0") for name, present in former.items()}
    monkeypatch.setattr(flags, "RENAMED", table)


def read(argv: list[str]) -> tuple[Settings, list[str]]:
    progress: list[str] = []
    settings = read_command_line("serve", argv, progress.append).settings
    return settings, [line for line in progress if line.startswith("note: ")]


NOTICE = "note: --parallel is now --max-running; 0.3.0 will not accept the former name"


@pytest.mark.parametrize("words", [["--parallel", "7"], ["--parallel=7"]])
def test_former_flag_is_applied_with_a_notice(words: list[str]) -> None:
    settings, notices = read([*ARGV, *words])
    assert settings.max_running == 7
    assert notices == [NOTICE]


def test_former_environment_variable_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLEGATE_PARALLEL", "7")
    settings, notices = read(ARGV)
    assert (settings.max_running, notices) == (7, [NOTICE])
    assert read([*ARGV, "--max-running", "8"])[0].max_running == 8


def test_former_key_of_the_file_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("parallel: 7\n")
    settings, notices = read([*ARGV, "--config", str(file)])
    assert (settings.max_running, notices) == (7, [NOTICE])


def test_former_switch_can_be_negated() -> None:
    assert not read([*ARGV, "--no-inspect"])[0].preflight


def test_former_flag_selects_a_backend() -> None:
    settings, _ = read(["some/model", "--workers", "http://127.0.0.1:1"])
    assert settings.upstream == "http://127.0.0.1:1"


def test_present_names_have_no_notice() -> None:
    assert read([*ARGV, "--max-running", "7"])[1] == []
    assert rename_flag("parallel=7") == "parallel=7"


def test_former_names_are_removed_in_their_version() -> None:
    """``RENAMED`` here is the real table."""
    assert all(Version(item.removal) > Version(__version__) for item in RENAMED.values())
