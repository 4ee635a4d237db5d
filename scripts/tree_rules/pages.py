"""What pages, docstrings and messages name exists, and pages begin with their purpose."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from scripts.site_hooks import OUTSIDE

from .tree import ROOMS, Tree

ARCHITECTURE = "docs/architecture.md"
NAMING = (ARCHITECTURE, "CONTRIBUTING.md", "README.md")
"""Pages that may name only files that exist."""
PATH = re.compile(rf"`((?:{'|'.join(ROOMS)}|tests|deploy|docs|scripts)/[\w./]*)`")
NO_PROSE = ("#", "|", "```", "    ", "- ", "* ", "!", "<", ">")
"""Beginnings of headings, tables, code, lists, pictures, HTML and quotes."""
MAX_FOLDERS = 13


def check_paths(tree: Tree) -> Iterator[str]:
    for page in NAMING:
        for path in PATH.findall(tree.read(page)):
            if not tree.exists(path):
                yield f"{page}: names {path}, which does not exist"


def check_functions(tree: Tree) -> Iterator[str]:
    """The table of calls names functions that exist, at least one in each row."""
    page = tree.read(ARCHITECTURE)
    calls = re.findall(r"^\| \d+ \|.*", page, re.MULTILINE)
    named = re.findall(r"`([\w/]+\.py)`: `(\w+)`", page)
    if not len(named) >= len(calls) > 0:
        yield f"{ARCHITECTURE}: {len(calls)} calls name {len(named)} functions"
    for path, name in named:
        source = tree.modules[path].source if path in tree.modules else ""
        if not re.search(rf"^(class|def|async def) {name}\b", source, re.MULTILINE):
            yield f"{ARCHITECTURE}: {path} has no {name}"


def check_top_folders(tree: Tree) -> Iterator[str]:
    shown = set(re.findall(r"^\| `(\w+)/` \|", tree.read(ARCHITECTURE), re.MULTILINE))
    folders = {path.partition("/")[0] for path in tree.files if "/" in path and path[0] != "."}
    for folder in sorted(shown ^ folders):
        yield f"{ARCHITECTURE}: the table of folders and the tree differ in {folder}/"
    if len(folders) > MAX_FOLDERS:
        yield f"there are {len(folders)} top folders; at most {MAX_FOLDERS}"


def check_docstrings(tree: Tree) -> Iterator[str]:
    """A file is named by its path from the root, or relative to the folder of its reader; vLLM's
    files begin with ``vllm/``."""
    modules = [*tree.package, *tree.select("tests/", "scripts/")]
    for module in modules:
        for name in sorted(set(re.findall(r"``([\w/]+\.py)``", module.source))):
            is_below = any(
                path.startswith(f"{module.folder}/") and path.endswith(f"/{name}")
                for path in tree.modules
            )
            if not tree.exists(name) and not is_below and not name.startswith("vllm/"):
                yield f"{module.path}: name {name} by its path from the root"


def check_first_paragraphs(tree: Tree) -> Iterator[str]:
    """The first paragraph of a page says what the page is for."""
    pages = [path for path in tree.files if path.startswith("docs/") and path.endswith(".md")]
    for page in [*pages, *OUTSIDE]:
        text = re.sub(r"<!--.*?-->\n*", "", tree.read(page), flags=re.DOTALL)
        title, first, *_ = [*re.split(r"\n{2,}", text.strip()), ""]
        is_prose = not first.startswith(NO_PROSE) and first.endswith((".", ":"))
        if not (title.startswith("# ") and is_prose and len(first) > 60):
            yield f"{page}: begins with no prose"


def check_install_commands(tree: Tree) -> Iterator[str]:
    """eaglegate is installed from a checkout or a wheel: ``pip install '.[cuda]'``."""
    project = tomllib.loads(tree.read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"].keys()
    texts = {module.path: module.source for module in tree.package}
    pages = [path for path in tree.files if path.endswith(".md")]
    texts |= {path: tree.read(path) for path in pages if path.startswith(("docs/", *ROOMS))}
    texts["README.md"] = tree.read("README.md")
    for path, text in texts.items():
        if re.search(r"install '?eaglegate", text):
            yield f"{path}: no registry has a package eaglegate"
        for name in set(re.findall(r"'\.\[(\w+)\]'", text)) - extras:
            yield f"{path}: there is no extra {name}"


RULES = (
    check_paths,
    check_functions,
    check_top_folders,
    check_docstrings,
    check_first_paragraphs,
    check_install_commands,
)
