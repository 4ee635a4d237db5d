"""Check that a built site has no broken links and anchors, and loads nothing from other hosts.

    python3 scripts/check_site.py site

Prints each fault. The exit status is 1 if there is one. Needs only Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements whose target a browser loads automatically, and the attribute that names it."""
NOT_LOADED = {"canonical", "next", "prev", "alternate"}
"""Values of ``rel`` whose links are not loaded."""


class SitePage(HTMLParser):
    """Ids, links and loaded addresses of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = {"", "__skip"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given.get("id", ""), given.get("name", "") if tag == "a" else ""}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        target = given.get(LOADED.get(tag, ""), "")
        if target and given.get("rel") not in NOT_LOADED:
            self.loaded.append(target)


def find_faults(site: Path) -> Iterator[str]:
    """Yield one line per fault."""
    pages = {
        path.resolve(): SitePage(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))
    }
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        name = path.relative_to(site.resolve())
        for target in page.loaded:
            if urlsplit(target).netloc:
                yield f"{name}: loads {target} from another host"
            elif fault := _find_fault(path, target, pages):
                yield f"{name}: {fault}"
        for target in page.links:
            if fault := _find_fault(path, target, pages):
                yield f"{name}: {fault}"


def _find_fault(path: Path, target: str, pages: dict[Path, SitePage]) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    address, anchor = urldefrag(target)
    place = (path.parent / unquote(address)).resolve() if address else path
    place = place / "index.html" if place.is_dir() else place
    if not place.exists():
        return f"{target} leads to no file"
    if anchor and place in pages and unquote(anchor) not in pages[place].ids:
        return f"{target} leads to no anchor"
    return None


def main(argv: list[str]) -> int:
    (site,) = map(Path, argv)
    faults = list(find_faults(site))
    print("\n".join(faults) or "every internal link and anchor leads somewhere")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
