"""Hooks of mkdocs: pages from outside ``docs/``, and links as in the repository.

A page links to files of the repository, so that its links work on a code host. On the site, a link
to a page leads to that page, and the name of any other file appears without a link. Broken links
are left unchanged: mkdocs then warns, and ``--strict`` fails.

A page with a ``mermaid`` fence shows the SVG with its name, because the site loads no program to
draw it. ``npx -p @mermaid-js/mermaid-cli mmdc -t neutral`` draws one; ``mark`` is its last line.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger("mkdocs.hooks.site")
OUTSIDE = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
    "lab/benchmarks/README.md": "project/benchmarks.md",
    "engine/demo/MODEL_CARD.md": "project/model-card.md",
}
"""Pages outside ``docs/`` by their path in the repository, and their places on the site."""
ORIGINS = {place: path for path, place in OUTSIDE.items()}
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *(```|~~~)")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
NESTED = re.compile(r"^ {3}(?=\S)")
"""Indent of text below a numbered item: 3 columns in Markdown, 4 in Python's Markdown."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    from mkdocs.structure.files import File

    for path, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Convert the diagrams, links and lists of one page to the site's form."""
    place = page.file.src_uri
    markdown = DIAGRAM.sub(lambda found: _show_diagram(found[1], place), markdown)
    origin = posixpath.dirname(ORIGINS.get(place, f"docs/{place}"))

    def relink(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if target.startswith("#") or "://" in target or target.startswith("mailto:"):
            return found[0]
        return _relink(text, target, origin, posixpath.dirname(place))

    return "\n".join(
        line if fenced else LINK.sub(relink, NESTED.sub("    ", line))
        for fenced, line in _split(markdown)
    )


def mark(code: str) -> str:
    """Return the comment that ties an SVG to the text that it was drawn from."""
    return f"<!-- drawn from {hashlib.sha256(code.encode()).hexdigest()[:16]} -->"


def _show_diagram(code: str, place: str) -> str:
    """Return the image drawn from a diagram."""
    drawn = (ROOT / "docs" / place).with_suffix(".svg")
    if not drawn.exists() or mark(code) not in drawn.read_text("utf-8"):
        log.warning("%s was not drawn from the diagram in %s: add %s", drawn, place, mark(code))
    return f'![Diagram]({drawn.name}){{ style="background: #fff; padding: 1rem" }}'


def _split(markdown: str) -> Iterator[tuple[bool, str]]:
    """Yield each line, with True if it is code."""
    fenced = False
    for line in markdown.split("\n"):
        edge = FENCE.match(line) is not None
        yield fenced or edge, line
        fenced ^= edge


def _relink(text: str, target: str, origin: str, folder: str) -> str:
    path, hash_, anchor = target.partition("#")
    named = posixpath.normpath(posixpath.join(origin, path))
    place = OUTSIDE.get(named, named.removeprefix("docs/"))
    if named == "README.md":
        place = "index.md"
    elif not (named in OUTSIDE or named.startswith("docs/")) and (ROOT / named).exists():
        return text
    relative = posixpath.relpath(place, folder or ".")
    return f"[{text}]({relative}{hash_}{anchor})"
