"""``pip install eaglegate`` brings what the gateway imports, and its extras what they are for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator

from .tree import IN_ENGINE, Module, Tree

DISTRIBUTIONS = {
    "huggingface_hub": "huggingface_hub", "pillow": "PIL", "pyyaml": "yaml",
}  # fmt: skip
"""Packages of another name than their distribution."""
BROUGHT = {"pydantic_core": "pydantic"}
"""Packages that another one brings, and whose names its documentation uses."""
EXTRAS = {
    "observability/tracing.py": {"opentelemetry"},
    "lab/": {"tqdm"},
    "lab/training/": {"safetensors", "torch", "transformers"},
}
"""Packages of the extras ``otel``, ``lab`` and ``train``, and the only places that import
them as soon as they are loaded.
"""
WITH_VLLM = ("engine/vllm_backend/", *IN_ENGINE, "lab/benchmarks/")


def list_top_imports(module: Module) -> set[str]:
    """Return the packages that are imported as soon as the module is."""
    nodes = module.syntax.body
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def list_dependencies(tree: Tree) -> set[str]:
    """Return the packages that a plain installation has."""
    project = tomllib.loads(tree.read("pyproject.toml"))["project"]
    lines = [re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]]
    names = {line.replace("-", "_") for line in lines}
    return {DISTRIBUTIONS.get(name, name) for name in names}


def check_imports(tree: Tree) -> Iterator[str]:
    declared = list_dependencies(tree) | {"eaglegate"} | sys.stdlib_module_names
    for module in tree.package:
        if module.path.startswith(WITH_VLLM):
            continue
        extras = [names for prefix, names in EXTRAS.items() if module.path.startswith(prefix)]
        allowed = declared.union(*extras)
        for name in sorted(list_top_imports(module)):
            if BROUGHT.get(name, name) not in allowed:
                yield f"{module.path}: imports {name}, which pyproject.toml does not declare"


def check_extras(tree: Tree) -> Iterator[str]:
    for prefix, names in EXTRAS.items():
        used = set().union(*map(list_top_imports, tree.select(prefix)))
        for name in sorted(names - used):
            yield f"{prefix}: imports no {name} any more; scripts/tree_rules allows it there"


RULES = (check_imports, check_extras)
