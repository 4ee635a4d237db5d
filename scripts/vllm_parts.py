"""List of the patches of vLLM, made from the files of ``engine/vllm_backend/patches``.

``python -m scripts.vllm_parts`` prints it; with a page as argument it rewrites the part of the page
between the two marks. vLLM need not be installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from eaglegate.engine.vllm_backend import patches

FOLDER = Path(patches.__file__).parent
BEGIN = "<!-- made by python -m scripts.vllm_parts: begin -->\n"
END = "<!-- end -->\n"
HEAD = "| patch | place | fault or gap | thread | until vLLM |\n|---|---|---|---|---|\n"


def render_row(name: str, place: str) -> str:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    constants = {
        ast.unparse(target): node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
    }
    paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    fault = " ".join(paragraph.split()).replace("``", "`")
    number = constants["THREAD"]
    thread = f"[vllm#{number}](https://github.com/vllm-project/vllm/issues/{number})"
    return f"| `{name}.py` | {place} | {fault} | {thread * bool(number)} | {constants['UNTIL']} |\n"


def render_rows() -> Iterator[str]:
    """Yield a row for each patch, in the order in which they are applied."""
    for _, place, names in patches.PATCHES:
        yield from (render_row(name, place) for name in names.split())


def rewrite_document(document: str) -> str:
    """Return ``document`` with an updated table."""
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n{HEAD}{''.join(render_rows())}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:]:
        page = Path(sys.argv[1])
        page.write_text(rewrite_document(page.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(HEAD, *render_rows(), sep="", end="")
