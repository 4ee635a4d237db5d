"""The rules of docs/architecture.md on imports between folders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from graphlib import CycleError, TopologicalSorter

from eaglegate.engine import FOR_WORKERS

from .tree import IN_ENGINE, ROOMS, Module, Tree

ENGINE_PARTS = ("eaglegate.engine.vllm_backend", "torch", "transformers")
MAY_NOT = {
    "server/": ("features", "observability"),
    "text/": ("server", "engine", "observability", "features", "fastapi"),
    "engine/": ("server", "observability", "features", "fastapi"),
    "observability/": ("server", "features"),
    "lab/": ("features",),
    "lab/measure/": ("server", "fastapi"),
    "lab/improve/": ("server", "fastapi"),
    # The parts of a gateway in front of workers.
    "engine/remote/": ENGINE_PARTS,
    "text/rendering/": ENGINE_PARTS,
    "engine/fleet/": ENGINE_PARTS,
    "server/backends/remote": ENGINE_PARTS,
}
"""Beginnings of paths, and the folders and packages that the files there may not import."""
ONLY_IN = {
    "lab": ("lab/",),
    "vllm": ("engine/vllm_backend/", *IN_ENGINE, "lab/training/", "lab/benchmarks/"),
    "httpx": ("engine/remote/", "engine/machine.py", "lab/"),
    "prometheus_client": ("observability/", "features/pod/engine/", "lab/benchmarks/"),
}
"""Folders and packages, and the only places that may import them. Keep this short."""
MAY = {
    "server/cli/serve.py": ("eaglegate.observability",),
    "server/cli/feature.py": ("eaglegate.observability",),
    "server/app.py": ("eaglegate.observability",),
    # The HTTP client of a running gateway, which imports nothing of the server.
    "lab/": ("eaglegate.server.cli.client",),
    # The loop drives canaries.
    "lab/improve/": ("eaglegate.features.canary",),
}
"""Exceptions from ``MAY_NOT``."""
BY_NAME = {
    "engine/vllm_backend/grammar_probe.py": ("eaglegate.engine",),
    "server/__main__.py": ("eaglegate.lab",),
    "server/cli/feature_table.py": ("eaglegate.features",),
    "engine/vllm_backend/plugin_table.py": ("eaglegate.features",),
    "features/improve/feature.py": ("eaglegate.lab",),
}
"""The files that import upwards by a module's name, so that nothing is loaded before it is used:
the commands, the tables of features and of plug-ins, and the improvement loop. Keep this short.
"""
FLOORS = {
    "server": (
        {"errors"},
        {"flags"},
        {"http", "store"},
        {"access"},
        {"settings", "feature_settings"},
        {"generation"},
        {"apis", "backends"},
        {"app"},
        {"cli"},
        {"__main__"},
    ),
    "engine": (
        {"bounded_yaml", "errors", "flag_numbers", "gpus", "logs", "orphan", "stop_signals"}
        | {"advisories", "wrapping"},
        {"totals", "types", "vllm_contract"},
        {"base", "events", "machine", "steps", "vllm_fields", "vllm_parts"},
        {"speculation", "wrapper"},
        {"preflight", "remote", "scripted", "supervision", "vllm_backend"},
        {"fleet"},
    ),
}
"""The parts of a folder, from the bottom up. A part imports parts of lower floors only."""
CLASSES_OF_WORKERS = {name: f"vllm_backend.{module}" for name, (module, _) in FOR_WORKERS.items()}
"""The modules behind the names that ``engine/__init__.py`` offers to vLLM."""


def is_below(name: str, package: str) -> bool:
    """Whether a dotted name is a package, one of the rooms or another's, or belongs to it."""
    full = f"eaglegate.{package}" if package in ROOMS else package
    return f"{name}.".startswith(f"{full}.")


def list_imports(module: Module) -> set[str]:
    """Return what a file imports, with the modules that its strings name where they may not."""
    allowed = BY_NAME.get(module.path, ())
    by_name = {
        name
        for name in module.modules_in_strings
        if not any(is_below(name, package) for package in allowed)
    }
    return module.imports | by_name


def check_layers(tree: Tree) -> Iterator[str]:
    for module in tree.package:
        forbidden = [
            package
            for prefix, packages in MAY_NOT.items()
            if module.path.startswith(prefix)
            for package in packages
        ]
        allowed = [
            name
            for prefix, names in MAY.items()
            if module.path.startswith(prefix)
            for name in names
        ]
        elsewhere = [
            package for package, places in ONLY_IN.items() if not module.path.startswith(places)
        ]
        for name in sorted(list_imports(module)):
            is_allowed = any(is_below(name, exception) for exception in allowed)
            if any(is_below(name, package) for package in forbidden) and not is_allowed:
                yield f"{module.path}: may not import {name}"
            for package in elsewhere:
                if is_below(name, package):
                    yield f"{module.path}: imports {name}, which is for {ONLY_IN[package]}"


PLUGIN_WORDS = re.compile(
    r"lookup|sharing|\bfair|prefix[ _-]?(cach|drop|cost)|scoring|audit|doctor", re.IGNORECASE
)
"""Words of the plug-ins, which the adapter does not know."""
OTHER_WORDS = re.compile(r"dynamic_sd_lookup|Promise\.AUDITS")
"""A name of vLLM's with such a word, and the promise of the log probabilities of prompts."""
ADAPTER = "engine/vllm_backend/"
PLUGIN_TABLE = f"{ADAPTER}plugin_table.py"


def check_adapter(tree: Tree) -> Iterator[str]:
    """The adapter of vLLM knows no plug-in, save in its table."""
    for module in tree.select(ADAPTER):
        if module.path == PLUGIN_TABLE:
            continue
        for number, line in enumerate(module.source.splitlines(), 1):
            if match := PLUGIN_WORDS.search(OTHER_WORDS.sub("", line)):
                yield f"{module.path}:{number}: {match[0]} is a word of a plug-in"


def list_inner_imports(module: Module) -> set[str]:
    """Return the parts of its room that a file imports, as dotted names below that room."""
    room = f"eaglegate.{module.room}"
    names = {name for name in list_imports(module) if is_below(name, module.room)} - {room}
    below = {name.removeprefix(f"{room}.") for name in names}
    return {CLASSES_OF_WORKERS.get(name, name) for name in below}


def check_floors(tree: Tree) -> Iterator[str]:
    for room, floors in FLOORS.items():
        floor_of = {part: floor for floor, parts in enumerate(floors) for part in parts}
        for module in tree.select(f"{room}/"):
            part = module.path.split("/")[1].removesuffix(".py")
            if part not in floor_of and part != "__init__":
                yield f"{module.path}: {part} has no floor"
                continue
            floor = floor_of.get(part, -1)  # a room imports nothing of its parts
            for name in sorted(list_inner_imports(module)):
                target = name.partition(".")[0]
                if target != part and floor_of.get(target, floor) >= floor:
                    yield f"{module.path}: imports {name}, which is on no lower floor"


def _find_child(tree: Tree, folder: str, name: str) -> str | None:
    """Return the file or folder in ``folder`` that a name below its room belongs to."""
    parts, inside = name.split("."), folder.split("/")[1:]
    if parts[: len(inside)] != inside or len(parts) == len(inside):
        return None
    child = parts[len(inside)]
    is_module = tree.exists(f"{folder}/{child}") or tree.exists(f"{folder}/{child}.py")
    return child if is_module else "__init__"


def check_circles(tree: Tree) -> Iterator[str]:
    """No files or folders of a folder import each other in a circle."""
    floored = tree.select(*(f"{room}/" for room in FLOORS))
    for folder in sorted({module.folder for module in floored}):
        graph: dict[str, set[str]] = {}
        for module in tree.select(f"{folder}/"):
            child = module.path.removeprefix(f"{folder}/").partition("/")[0].removesuffix(".py")
            targets = {
                _find_child(tree, folder, name) or child for name in list_inner_imports(module)
            }
            graph.setdefault(child, set()).update(targets - {child})
        yield from _find_circle(folder, graph)


def check_cycles(tree: Tree) -> Iterator[str]:
    """No modules import each other in a circle. Imports under TYPE_CHECKING count as well."""
    modules = {module.name: module for module in tree.package}
    graph = {
        name: set(_list_modules(module, modules.keys())) - {name}
        for name, module in modules.items()
    }
    yield from _find_circle("the package", graph)


def _list_modules(module: Module, names: Set[str]) -> Iterator[str]:
    """Yield the modules of ours that a module needs.

    ``from package import module`` needs the package only for names that are no modules.
    """
    for node in module.select(ast.Import):
        yield from names & {alias.name for alias in node.names}
    for origin in module.select(ast.ImportFrom):
        package = origin.module or ""
        imported = {f"{package}.{alias.name}" for alias in origin.names}
        yield from imported & names
        if package in names and imported - names:
            yield package


def _find_circle(place: str, graph: dict[str, set[str]]) -> Iterator[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"{place}: imports in a circle: {' <- '.join(error.args[1])}"


def check_bare_imports(tree: Tree) -> Iterator[str]:
    """``import server`` works from the root of a checkout only."""
    for module in [*tree.package, *tree.select("tests/", "scripts/")]:
        for name in sorted(module.imports):
            if name.partition(".")[0] in ROOMS:
                yield f"{module.path}: import eaglegate.{name}, not {name}"


RULES = (check_layers, check_adapter, check_floors, check_circles, check_cycles, check_bare_imports)
