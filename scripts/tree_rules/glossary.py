"""docs/glossary.md: each word is in use, has one entry, and has replaced its synonyms."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .tree import Module, Tree

PAGE = "docs/glossary.md"
ENTRY = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \|(.*)\|$", re.MULTILINE)
ROW = re.compile(r"^\| (?!word ).+\|$", re.MULTILINE)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Entry(NamedTuple):
    word: str
    meaning: str
    synonyms: tuple[str, ...]


def read_entries(page: str) -> list[Entry]:
    return [
        Entry(word.lower(), meaning, tuple(filter(None, map(str.strip, synonyms.split(",")))))
        for word, meaning, synonyms in ENTRY.findall(page)
    ]


def list_names(module: Module) -> Iterator[str]:
    """Yield the names that a module binds; names of other packages are only read."""
    for node in module.select(ast.AST):
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


def find(phrase: str, text: str) -> re.Match[str] | None:
    return re.search(rf"^.*\b{re.escape(phrase)}s?\b.*$", text, re.MULTILINE)


def check_entries(tree: Tree) -> Iterator[str]:
    page = tree.read(PAGE)
    entries = read_entries(page)
    if not len(ROW.findall(page)) == len(entries) > 0:
        yield f"{PAGE}: {len(entries)} of {len(ROW.findall(page))} rows are entries"
    counts = Counter(entry.word for entry in entries)
    for entry in entries:
        if counts[entry.word] > 1:
            yield f"{PAGE}: {entry.word} has {counts[entry.word]} entries"
        for synonym in entry.synonyms:
            if synonym in counts:
                yield f"{PAGE}: {synonym} is a word and a synonym of {entry.word}"
        if not re.match(r"[A-Z].*\.$", entry.meaning):
            yield f"{PAGE}: the meaning of {entry.word} is no sentence"


def check_words(tree: Tree) -> Iterator[str]:
    """Words are in use, and their synonyms are no names in the code."""
    places = {
        split_name(name): f"{module.path}: {name}"
        for module in tree.package
        for name in list_names(module)
    }
    names = "\n".join(places)
    pages = [path for path in tree.files if path.startswith("docs/") and path.endswith(".md")]
    texts = [tree.read(path) for path in pages if path != PAGE]
    texts += [module.source for module in tree.package]
    text = " ".join(" ".join(texts).split()).lower()
    for entry in read_entries(tree.read(PAGE)):
        if not find(entry.word, text) and not find(entry.word, names):
            yield f"{PAGE}: {entry.word} is not in use"
        for synonym in entry.synonyms:
            if match := find(synonym, names):
                yield f"{places[match[0]]}: say {entry.word}, not {synonym}"


RULES = (check_entries, check_words)
