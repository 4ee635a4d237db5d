"""A release names one version everywhere, and the workflows run the parts of ``.ci/run``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from eaglegate import __version__
from eaglegate.server.__main__ import main
from tests.conftest import CORE, LONGEST

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


def list_targets() -> set[str]:
    makefiles = read("Makefile") + read("lab/training/training.mk")
    return set(re.findall(r"^([\w-]+):(?!=)", makefiles, re.MULTILINE))


def list_ci_parts() -> list[str]:
    (parts,) = re.findall(r"^parts=\((.*)\)$", read(".ci/run"), re.MULTILINE)
    return parts.split()


def test_ci_names_targets_that_exist() -> None:
    reports = re.findall(r"^report \d+ ([\w-]+)", read(".ci/run"), re.MULTILINE)
    assert len(reports) > 3
    assert {*list_ci_parts(), *reports} - {"image"} <= list_targets()


@pytest.mark.parametrize("inside", sorted({*CORE, *LONGEST}))
def test_files_that_order_the_slow_tests_have_some(inside: str) -> None:
    assert re.search(r"mark\.(slow|alone)", read(f"tests/{inside}"))


def test_workflow_runs_the_parts_of_ci() -> None:
    (job,) = yaml.safe_load(read(".github/workflows/checks.yml"))["jobs"].values()
    assert job["strategy"]["matrix"]["part"] == list_ci_parts()
    assert job["steps"][-1] == {"run": ".ci/run ${{ matrix.part }}"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=str)
def test_workflows_name_targets_that_exist(path: Path) -> None:
    named = re.findall(r"\bmake ([\w-]+)", path.read_text(encoding="utf-8"))
    assert set(named) <= list_targets()


KINDS = ("Added", "Changed", "Fixed", "Removed")


def test_changelog_has_its_form() -> None:
    _, *sections = re.split(r"^## ", read("CHANGELOG.md"), flags=re.MULTILINE)
    titles = [section.partition("\n")[0] for section in sections]
    assert titles[0] == "Unreleased"
    assert titles[1].split()[0] == __version__
    assert all(re.fullmatch(r"\d+\.\d+\.\d+( \(\d{4}-\d\d-\d\d\))?", title) for title in titles[1:])
    for section in sections:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]
    assert re.findall(r"^### (.*)$", sections[0], re.MULTILINE) == list(KINDS)


def test_changelog_names_pages_that_exist() -> None:
    pages = re.findall(r"\bdocs/[\w-]+\.md", read("CHANGELOG.md"))
    assert pages and all((ROOT / page).exists() for page in pages)
