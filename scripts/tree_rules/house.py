"""Rules on names, folders and tests."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator

from .dependencies import EXTRAS
from .layers import BY_NAME, MAY, MAY_NOT, ONLY_IN
from .readers import CHILDREN, READERS
from .tree import ROOMS, Tree

GLOSSARY = {"Step", "Event", "Draft", "Target", "Lane", "Slice", "Job", "Prompt"}
HOME_OF_ALIASES = "engine/events.py"
CONTEXT = "observability/middleware.py"
DESCRIBED = (
    *ROOMS,
    *(
        f"server/{folder}"
        for folder in ("http", "access", "apis", "generation", "store", "backends", "cli")
    ),
)
"""Folders whose docstring has room for the purpose, the callers and the place of new code."""
PATHS_OF_RULES = {
    *MAY_NOT, *MAY, *BY_NAME, *READERS, *CHILDREN, *EXTRAS, *sum(ONLY_IN.values(), ()),
}  # fmt: skip


def check_rooms(tree: Tree) -> Iterator[str]:
    """Each room is a folder with files, and each such folder is a room of every guard."""
    packages = {path.partition("/")[0] for path in tree.files if path.count("/") == 1}
    packages = {folder for folder in packages if f"{folder}/__init__.py" in tree.modules}
    for folder in sorted(packages ^ set(ROOMS)):
        yield f"{folder}/: a folder of the package is a room in scripts/tree_rules/tree.py"
    tools = tomllib.loads(tree.read("pyproject.toml"))["tool"]
    typed = {name.split(".")[1] for name in tools["mypy"]["packages"]}
    for tool, folders in (("mypy", typed), ("coverage", set(tools["coverage"]["run"]["source"]))):
        for folder in sorted(folders ^ set(ROOMS)):
            yield f"pyproject.toml: {tool} and scripts/tree_rules/tree.py differ in {folder}/"


def check_paths_of_rules(tree: Tree) -> Iterator[str]:
    """A rule about a file that is gone guards nothing."""
    for path in sorted(PATHS_OF_RULES):
        if not tree.select(path):
            yield f"{path}: named by scripts/tree_rules, and no such file is there"


def check_context_variables(tree: Tree) -> Iterator[str]:
    """Context variables are in one module. Elsewhere a request's data are arguments."""
    for module in tree.package:
        if ("ContextVar" in module.source) != (module.path == CONTEXT):
            yield f"{module.path}: context variables are in {CONTEXT} alone"


def check_class_names(tree: Tree) -> Iterator[str]:
    """No public class name is there twice."""
    homes = defaultdict(list)
    for module in tree.package:
        for node in module.syntax.body:
            if isinstance(node, ast.ClassDef) and module.folder != "lab/benchmarks":
                homes[node.name].append(module.path)
    for name, paths in homes.items():
        if len(paths) > 1 and not name.startswith("_"):
            yield f"{', '.join(paths)}: each has a class {name}"


def check_aliases(tree: Tree) -> Iterator[str]:
    """``Step = ...`` and ``import X as Step`` hide what a word of the glossary means."""
    for module in tree.package:
        if module.path == HOME_OF_ALIASES:
            continue
        for assignment in module.select(ast.Assign):
            if GLOSSARY & {getattr(target, "id", "") for target in assignment.targets}:
                yield f"{module.path}:{assignment.lineno}: a word of the glossary is an alias"
        for node in module.select(ast.ImportFrom):
            if GLOSSARY & {alias.asname for alias in node.names}:
                yield f"{module.path}:{node.lineno}: a word of the glossary is an alias"


def check_folder_docstrings(tree: Tree) -> Iterator[str]:
    for folder in DESCRIBED:
        module = tree.modules.get(f"{folder}/__init__.py")
        lines = (ast.get_docstring(module.syntax) or "").splitlines() if module else []
        if len(lines) < 4:
            yield f"{folder}/__init__.py: describe the purpose, the callers and what goes here"


def check_test_names(tree: Tree) -> Iterator[str]:
    """``test_unsupported_fields_are_rejected``, not ``test_what_is_rejected``."""
    for module in tree.select("tests/"):
        for name in re.findall(r"def (test_what_\w+)", module.source):
            yield f"{module.path}: {name} is no sentence"


def check_longest_tests(tree: Tree) -> Iterator[str]:
    """A test file that was renamed would begin among the last."""
    for node in tree.modules["tests/conftest.py"].syntax.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONGEST":
            files = ast.literal_eval(node.value)
            for file in files:
                module = tree.modules.get(f"tests/{file}")
                if module is None or "mark.slow" not in module.source or files.count(file) > 1:
                    yield f"tests/conftest.py: LONGEST has {file}: once, and a file of slow tests"
            return
    yield "tests/conftest.py: has no LONGEST"


RULES = (
    check_rooms,
    check_paths_of_rules,
    check_context_variables,
    check_class_names,
    check_aliases,
    check_folder_docstrings,
    check_test_names,
    check_longest_tests,
)
