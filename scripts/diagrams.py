"""Draw the diagrams of the documentation in advance, because its site loads no program for that.

    npm install mermaid
    python -m scripts.diagrams node_modules/mermaid/dist/mermaid.min.js

Needs Debian's chromium. A page with a ``mermaid`` fence gets an SVG with the page's name in the
same folder. The SVG has a hash of its source, and the site's build warns if the fence has changed.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = """<!doctype html><script src="{library}"></script><body><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false,
  flowchart: {{htmlLabels: false, useMaxWidth: false}}}});
mermaid.render("diagram", {code}).then(found => {{
  document.body.innerHTML = found.svg;
}});
</script></body>"""
DRAWN = re.compile(r"<svg.*?</svg>", re.DOTALL)


def mark(code: str) -> str:
    """Return the comment that ties an SVG to the text that it was drawn from."""
    return f"<!-- drawn from {hashlib.sha256(code.encode()).hexdigest()[:16]} -->"


def draw(code: str, library: Path) -> str:
    """Return the SVG of a diagram. Raises ValueError if mermaid draws nothing."""
    browser = shutil.which("chromium")
    if browser is None:
        raise ValueError("needs Debian's chromium")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(PAGE.format(library=library.resolve().as_uri(), code=json.dumps(code)))
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=9000")
        done = subprocess.run(
            [browser, *options, f"--user-data-dir={folder}", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    found = DRAWN.search(done.stdout)
    if found is None or "Syntax error" in found[0]:
        raise ValueError(f"mermaid draws nothing: {html.unescape(done.stdout)[:500]}")
    return found[0]


def main(argv: list[str]) -> int:
    (library,) = map(Path, argv)
    for page in sorted(DOCS.rglob("*.md")):
        for code in FENCE.findall(page.read_text("utf-8")):
            svg = draw(code, library)
            page.with_suffix(".svg").write_text(f"{svg}\n{mark(code)}\n", encoding="utf-8")
            print(page.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
