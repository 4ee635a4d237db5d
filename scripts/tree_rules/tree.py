"""The files of a checkout, each read and parsed once."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

ROOMS = ("server", "engine", "text", "observability", "features", "lab")
"""The top folders of the package. Every rule takes its folders from here."""
IN_ENGINE = tuple(f"features/{name}/engine/" for name in (
    "audit", "fair_share", "lookups", "pod", "prefix_cache",
))  # fmt: skip
"""The parts of features in the engine, which may import vLLM."""
MODULE_NAME = re.compile(r"eaglegate(?:\.\w+)+(?:\.|\.\w+|:\w+)")
"""A string that names a module: ``eaglegate.x.y``, ``eaglegate.x:Class``, or the constant part of
``f"eaglegate.x.{name}"``.
"""
Node = TypeVar("Node", bound=ast.AST)


class Module:
    """A Python file. ``path`` is relative to the root, with slashes."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source
        self.folder = path.rpartition("/")[0]
        self.room = path.partition("/")[0]
        inside = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.name = f"eaglegate.{inside}"

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.syntax))

    def select(self, kind: type[Node]) -> Iterator[Node]:
        """Yield the nodes of a kind, at any depth of the code."""
        return (node for node in self._nodes if isinstance(node, kind))

    @cached_property
    def imports(self) -> set[str]:
        """Dotted names of the imported modules and of what is imported from them."""
        names = {alias.name for node in self.select(ast.Import) for alias in node.names}
        for node in self.select(ast.ImportFrom):
            if node.level == 0 and node.module:
                names.add(node.module)
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        return names

    @cached_property
    def modules_in_strings(self) -> set[str]:
        texts = (node.value for node in self.select(ast.Constant) if isinstance(node.value, str))
        return {text.partition(":")[0].rstrip(".") for text in texts if MODULE_NAME.fullmatch(text)}


class Tree:
    """The files that git has or would add."""

    def __init__(self, root: Path) -> None:
        self.root = root
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        self.files = sorted(
            {path for path in listing.stdout.splitlines() if (root / path).is_file()}
        )
        self.modules = {
            path: Module(path, self.read(path)) for path in self.files if path.endswith(".py")
        }

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def select(self, *prefixes: str) -> list[Module]:
        """Return the modules whose paths begin with one of the prefixes."""
        return [module for path, module in self.modules.items() if path.startswith(prefixes)]

    @cached_property
    def package(self) -> list[Module]:
        """The modules of all rooms."""
        return self.select(*(f"{room}/" for room in ROOMS))


Rule = Callable[[Tree], Iterator[str]]
