"""The documentation site: its reference is what the code says, and its checker finds faults."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts import check_site, reference, site_hooks
from tests.server.conftest import Lab

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse writes help differently")
def test_the_reference_is_what_the_code_says():
    for name, text in reference.render_pages(Lab().app.openapi()).items():
        page = (ROOT / "docs" / "reference" / name).read_text("utf-8")
        assert page == text, "run python -m scripts.reference"


def relink(markdown: str, place: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
    return site_hooks.on_page_markdown(markdown, page)


@pytest.mark.parametrize(
    "place, given, expected",
    [
        ("api.md", "[s](speculation.md#x)", "[s](speculation.md#x)"),
        ("api.md", "[b](../lab/benchmarks/README.md#a)", "[b](project/benchmarks.md#a)"),
        ("api.md", "[top](../README.md)", "[top](index.md)"),
        ("examples/README.md", "[c](../../compose.yaml)", "c"),
        ("project/benchmarks.md", "[s](../../docs/scaling.md)", "[s](../scaling.md)"),
        ("project/changelog.md", "[a](docs/api.md)", "[a](../api.md)"),
        ("api.md", "[lost](lost.md) [here](#x) <a> [u](http://u)", None),
        ("api.md", "```\n[b](../CHANGELOG.md)\n```", None),
        ("parsers.md", "1. a\n   - b", "1. a\n    - b"),
    ],
)
def test_links_as_in_the_repository_become_those_of_the_site(place, given, expected):
    assert relink(given, place) == (given if expected is None else expected)


def test_the_diagrams_are_drawn_from_what_the_pages_say():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "```mermaid" in path.read_text()]
    assert pages
    for page in pages:
        (code,) = site_hooks.DIAGRAM.findall(page.read_text("utf-8"))
        assert site_hooks.mark(code) in page.with_suffix(".svg").read_text("utf-8"), page


NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
PAGES = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]


def test_sections_are_roles():
    sections = re.findall(r"^  - (.+):$", NAV, re.MULTILINE)
    assert sections == [
        "Start",
        "Application developers",
        "Operators",
        "ML engineers",
        "Reference",
        "Results",
    ]


def test_every_page_has_one_place_in_the_navigation():
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", NAV, re.MULTILINE)
    assert sorted(listed) == sorted([*PAGES, *site_hooks.ORIGINS])


def test_every_page_from_outside_is_there():
    assert all((ROOT / path).exists() for path in site_hooks.OUTSIDE)


def test_the_checker_finds_what_is_broken(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<h1 id="here">x</h1><a href="../">up</a>')
    (tmp_path / "index.html").write_text(
        '<a href="sub/#here">fine</a><a href="sub/#gone">x</a><a href="lost/">x</a>'
        '<a href="https://example.com">fine</a><script src="https://cdn.example/x.js"></script>'
        '<link rel="canonical" href="https://example.com/"><img src="none.png">'
    )
    assert sorted(check_site.find_faults(tmp_path)) == [
        "index.html: loads https://cdn.example/x.js from another host",
        "index.html: lost/ leads to no file",
        "index.html: none.png leads to no file",
        "index.html: sub/#gone leads to no anchor",
    ]
    assert check_site.main([str(tmp_path)]) == 1
