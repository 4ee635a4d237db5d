"""Compares parts of vLLM, written as lines of text, with its source. Imports nothing of it.

One line per part, lines that are indented deeper go on with it:

    Class.method(self request new?)  exactly these parameters: we override, replace or wrap it;
                                     one with a question mark may be missing
    Class.method(+ request_id)       at least these: we call it
    Class: name other                attributes of its instances
    Class = name other               these fields and no others: we copy them
    module: name other               names in the module
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path


def compare_file(file: Path, parts: str) -> Iterator[str]:
    """The names in ``parts`` that the source in ``file`` does not have, or has otherwise."""
    module = _read_module(file)
    for part in split_parts(parts):
        yield from module.find_differences(part)


def split_parts(parts: str) -> Iterator[str]:
    """The lines of one file in ``PARTS``, each with those that go on with it."""
    for part in textwrap.dedent(parts.strip("\n")).replace("\n ", " ").strip().splitlines():
        yield " ".join(part.split())


class ModuleSource:
    """The functions and attributes that a module's source defines."""

    def __init__(self, tree: ast.Module) -> None:
        self._functions: dict[str, list[str]] = {}
        self._names = {"module": set(_defined_names(tree.body))}
        self._fields: dict[str, set[str]] = {}
        for node in tree.body:
            self._add_function("", node)
            if isinstance(node, ast.ClassDef):
                self._names[node.name] = {*_defined_names(node.body), *_assigned_names(node)}
                annotated = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                self._fields[node.name] = {*_defined_names(annotated), *_assigned_names(node)}
                for member in node.body:
                    self._add_function(f"{node.name}.", member)

    def find_differences(self, part: str) -> Iterator[str]:
        """The names in one line of ``PARTS`` that the source has otherwise."""
        if "(" in part:
            name, _, wanted = part.removesuffix(")").partition("(")
            if not _fits(self._functions.get(name), wanted.split()):
                yield name
            return
        if " = " in part:
            owner, _, exact = part.partition(" = ")
            changed = self._fields.get(owner, set()) ^ set(exact.split())
            yield from (f"{owner}.{name}" for name in sorted(changed))
            return
        owner, _, names = part.partition(":")
        known = self._names.get(owner, set())
        yield from (f"{owner}.{name}" for name in names.split() if name not in known)

    def _add_function(self, prefix: str, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._functions.setdefault(prefix + node.name, _list_parameters(node.args))


@cache
def _read_module(file: Path) -> ModuleSource:
    """A file that is gone defines nothing."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return ModuleSource(ast.parse(text))


def _fits(found: list[str] | None, wanted: list[str]) -> bool:
    if found is None:
        return False
    if wanted[:1] == ["+"]:
        return set(wanted[1:]) <= set(found)
    return found == [n.rstrip("?") for n in wanted if not n.endswith("?") or n[:-1] in found]


def _list_parameters(given: ast.arguments) -> list[str]:
    """In the order of ``inspect.signature``."""
    variable = [given.vararg.arg] if given.vararg else []
    keywords = [given.kwarg.arg] if given.kwarg else []
    plain = [one.arg for one in (*given.posonlyargs, *given.args)]
    return [*plain, *variable, *(one.arg for one in given.kwonlyargs), *keywords]


def _defined_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module or class define, imports and annotations too."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign):
            yield from _target_names(node.target)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _target_names(target)


def _target_names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id


def _assigned_names(owner: ast.ClassDef) -> Iterator[str]:
    """What methods assign to ``self``."""
    for node in ast.walk(owner):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            yield node.attr
