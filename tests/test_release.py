"""A release names one version everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from eaglegate import __version__
from eaglegate.server.__main__ import main

ROOT = Path(__file__).parent.parent


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_command_prints_the_version(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_package_is_built_with_the_version() -> None:
    dynamic = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["dynamic"]
    assert dynamic["version"] == {"attr": "eaglegate.__version__"}


@pytest.mark.parametrize(
    ("path", "pattern"),
    [("README.md", r"eaglegate-([\d.]+)-py3"), ("Dockerfile", r"VERSION=([\d.]+)")],
)
def test_files_name_the_version(path: str, pattern: str) -> None:
    assert set(re.findall(pattern, read(path))) == {__version__}
