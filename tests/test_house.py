"""Rules of the source tree that no linter has: sizes, names, imports (docs/architecture.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "observability")
MOST_LINES = 400
MOST_MODULES = 330
DOCS = ("docs/architecture.md", "CONTRIBUTING.md", "README.md")


def _modules() -> dict[str, Path]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(paths)
    }


MODULES = _modules()


def test_the_number_of_modules() -> None:
    assert len(MODULES) <= MOST_MODULES, "merge modules that are one thing"


@pytest.mark.parametrize("folder", (*PACKAGES, "benchmarks", "training"))
def test_no_file_is_too_long(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert not long, "split these files"


@pytest.mark.parametrize("page", DOCS)
def test_pages_name_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:server|engine|observability|tests|deploy|docs)/[\w./]*)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]
