"""docs/glossary.md: each word is in use, has one entry, and has replaced its synonyms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "glossary.md"
PACKAGES = ("server", "engine", "text", "observability", "capture", "canary", "lab")
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \|(.*)\|$", re.MULTILINE)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Entry(NamedTuple):
    word: str
    meaning: str
    synonyms: tuple[str, ...]


def read_entries(page: str) -> list[Entry]:
    return [
        Entry(word, meaning, tuple(filter(None, map(str.strip, synonyms.split(",")))))
        for word, meaning, synonyms in ROW.findall(page)
    ]


ENTRIES = read_entries(PAGE.read_text("utf-8"))


def list_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds; names of other packages are only read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def split_name(name: str) -> str:
    """Return the words of a name: ``accept length`` for ``_AcceptLength`` and ``accept_length``."""
    return " ".join(WORD.findall(name)).lower()


def matches(phrase: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(phrase)}s?\b", text) is not None


@cache
def read_sources() -> dict[Path, str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {path: path.read_text("utf-8") for path in sorted(paths)}


@cache
def bound_names() -> dict[str, str]:
    """Names that the code binds, as words, with one place of each."""
    return {
        split_name(name): f"{path.relative_to(ROOT)}: {name}"
        for path, source in read_sources().items()
        for name in list_names(ast.parse(source))
    }


def test_every_table_row_is_an_entry() -> None:
    rows = re.findall(r"^\| (?!word ).+\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(ENTRIES) > 50


def test_words_are_unique() -> None:
    words = [entry.word.lower() for entry in ENTRIES]
    assert len(set(words)) == len(words)


def test_no_word_is_a_synonym_of_another() -> None:
    words = {entry.word.lower() for entry in ENTRIES}
    assert not [word for entry in ENTRIES for word in entry.synonyms if word in words]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.word)
def test_meanings_are_sentences(entry: Entry) -> None:
    assert re.match(r"[A-Z].*\.$", entry.meaning)


@cache
def written_text() -> str:
    pages = (page for page in (ROOT / "docs").rglob("*.md") if page != PAGE)
    texts = [*(page.read_text("utf-8") for page in pages), *read_sources().values()]
    return " ".join(" ".join(texts).split()).lower()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.word)
def test_words_are_in_use(entry: Entry) -> None:
    word = entry.word.lower()
    assert matches(word, written_text()) or any(matches(word, name) for name in bound_names())


@pytest.mark.parametrize(
    "synonym", [synonym for entry in ENTRIES for synonym in entry.synonyms], ids=str
)
def test_synonyms_are_no_names_in_the_code(synonym: str) -> None:
    places = [place for name, place in bound_names().items() if matches(synonym, name)]
    assert not places, f"docs/glossary.md has another word for {synonym}"


@pytest.mark.parametrize("name", ["AcceptLength", "accept_lengths", "_min_accept_length"])
def test_synonyms_are_recognized_in_any_spelling(name: str) -> None:
    assert matches("accept length", split_name(name))
    (module,) = ast.parse(f"{name} = 1").body
    assert [*list_names(module)] == [name]
