"""Each rule of scripts/tree_rules finds a fault planted in a small tree that keeps them all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.site_hooks import OUTSIDE
from scripts.tree_rules.__main__ import find_faults, main
from scripts.tree_rules.budget import LINES
from scripts.tree_rules.dependencies import EXTRAS
from scripts.tree_rules.house import CONTEXT, DESCRIBED, PATHS_OF_RULES
from scripts.tree_rules.readers import CHILDREN, LIMITS, READERS
from scripts.tree_rules.tree import ROOMS, Tree
from tests.conftest import ROOT

PROSE = "This paragraph says in a sentence that is long enough what the page is for."
GLOSSARY = f"# Glossary\n\n{PROSE}\n\n| **depth** | Number of tokens. | gamma, spec length |\n"
ARCHITECTURE = f"# Architecture\n\n{PROSE}\n\n| 1 | `server/app.py`: `App` |\n"
TABLE = "".join(f"| `{room}/` |\n" for room in (*ROOMS, "docs", "src", "tests"))
FOLDER = '"""A folder.\n\nIts callers.\n\nIts new code."""\n'
APP = "class App:\n    depth = 1\n"
NO_MODULES = 'NAMES = ("eaglegate", "eaglegate.access", "see eaglegate.lab.improve")\n'
BAD_NAME = "test_" + "what_is_refused"
FILE = "missing.py"
CLIENT = "from eaglegate.server.cli.client import ask\n"


def list_files() -> dict[str, str]:
    """Return the files of a tree without a fault."""
    stubs = [f"{path}__init__.py" if path.endswith("/") else path for path in PATHS_OF_RULES]
    files = {path if path.endswith(".py") else f"{path}.py": "" for path in stubs}
    files |= {f"{folder}/__init__.py": FOLDER for folder in DESCRIBED}
    files |= dict.fromkeys(READERS, "import PIL\n")
    for path in CHILDREN:
        files[path] = files[path] + "".join(f"# {limit}\n" for limit in LIMITS)
    for prefix, packages in EXTRAS.items():
        path = f"{prefix}__init__.py" if prefix.endswith("/") else prefix
        files[path] += "".join(f"import {package}\n" for package in sorted(packages))
    files |= dict.fromkeys((*OUTSIDE, "README.md"), f"# Page\n\n{PROSE}\n")
    return files | {
        CONTEXT: "from contextvars import ContextVar\n",
        "server/app.py": APP,
        "text/strings.py": NO_MODULES,
        "lab/measure/ask.py": CLIENT,
        "docs/architecture.md": ARCHITECTURE + TABLE,
        "docs/glossary.md": GLOSSARY,
        "pyproject.toml": (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
        "src/eaglegate/__init__.py": "",
        "tests/conftest.py": 'LONGEST = ("test_long.py",)\n',
        "tests/test_long.py": "pytestmark = pytest.mark.slow\n",
    }


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def test_a_tree_without_a_fault_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(write_tree(tmp_path, list_files())) == 0
    printed = capsys.readouterr()
    assert "product" in printed.out and not printed.err


def test_a_fault_is_printed_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, list_files() | {"text/x.py": "import vllm\n"})
    assert main(tmp_path) == 1
    assert "text/x.py: imports vllm" in capsys.readouterr().err


IN_STRINGS = (
    'import_module("eaglegate.lab.improve")',
    'import_module(f"eaglegate.lab.{name}")',
    'TABLE = {"x": "eaglegate.lab.improve:Loop"}',
    'TABLE = {"x": "eaglegate.lab:Loop"}',
)
PLANTED = [
    *(("engine/x.py", code, "engine/x.py: imports eaglegate.lab") for code in IN_STRINGS),
    ("server/app.py", "import eaglegate.features.audit", "may not import eaglegate.features.audit"),
    ("server/http/x.py", "import eaglegate.observability", "may not import eaglegate.observab"),
    ("text/x.py", "def f():\n    from fastapi import Request", "may not import fastapi"),
    ("lab/measure/x.py", "from eaglegate.server import app", "may not import eaglegate.server"),
    ("text/rendering/x.py", "import torch", "may not import torch"),
    ("engine/vllm_backend/x.py", "looks_for_lookups = 1", "x.py:1: lookup is a word of a plug-in"),
    ("engine/fleet/x.py", "import eaglegate.engine.vllm_backend", "may not import eaglegate.engi"),
    ("server/http/x.py", "import httpx", "server/http/x.py: imports httpx"),
    ("features/audit/x.py", "import prometheus_client", "features/audit/x.py: imports prometheus"),
    ("server/http/x.py", "import eaglegate.server.apis", "imports apis, which is on no lower"),
    ("server/http/x.py", '"eaglegate.server.apis.chat"', "imports apis.chat, which is on no"),
    ("server/novel.py", "", "server/novel.py: novel has no floor"),
    ("engine/__init__.py", f"{FOLDER}import eaglegate.engine.types", "engine/__init__.py: imports"),
    ("engine/types.py", "from eaglegate.engine import Scheduler", "imports vllm_backend.scheduler"),
    ("tests/x.py", "from server import app", "import eaglegate.server, not server"),
    ("novel/__init__.py", "", "novel/: a folder of the package is a room"),
    ("pyproject.toml", None, "pyproject.toml: coverage and scripts/tree_rules/tree.py differ in"),
    ("server/app.py", f"{APP}from contextvars import ContextVar", "server/app.py: context variab"),
    ("lab/prove/x.py", "class App: ...", "lab/prove/x.py, server/app.py: each has a class App"),
    ("text/x.py", "Step = int", "text/x.py:1: a word of the glossary is an alias"),
    ("text/x.py", "from text import X as Step", "text/x.py:1: a word of the glossary is an alias"),
    ("server/apis/__init__.py", '"""Short."""', "server/apis/__init__.py: describe the purpose"),
    ("tests/test_x.py", f"def {BAD_NAME}(): ...", f"{BAD_NAME} is no sentence"),
    ("tests/test_long.py", "", "LONGEST has test_long.py"),
    ("text/x.py", "import lark", "text/x.py: READERS lists"),
    ("text/media/decoder.py", "", "text/media/decoder.py: READERS lists"),
    ("text/x.py", "from jsonschema_rs import bundle", "imports jsonschema_rs.bundle, which may"),
    ("text/x.py", "import jsonschema", "imports jsonschema, which may"),
    ("text/x.py", "Draft7Validator(schema)", "text/x.py:1: a schema from elsewhere"),
    ("text/media/decoder.py", "import PIL", "text/media/decoder.py: has no setrlimit"),
    ("text/x.py", "import eaglegate.text.media.decoder", "text/x.py: imports"),
    ("features/audit/x.py", "import rich", "features/audit/x.py: imports rich, which pyproject"),
    ("lab/measure/x.py", "import torch", "lab/measure/x.py: imports torch, which pyproject"),
    ("observability/tracing.py", "", "observability/tracing.py: imports no opentelemetry"),
    ("docs/glossary.md", f"{GLOSSARY}| width | Of a step. | |\n", "1 of 2 rows are entries"),
    ("docs/glossary.md", GLOSSARY + "| **Depth** | Twice. | |\n", "depth has 2 entries"),
    ("docs/glossary.md", GLOSSARY.replace("gamma", "depth"), "depth is a word and a synonym"),
    ("docs/glossary.md", GLOSSARY.replace("N", "n"), "the meaning of depth is no sentence"),
    ("docs/glossary.md", GLOSSARY + "| **lane** | An engine. | |\n", "lane is not in use"),
    *(
        ("text/x.py", f"{name} = 1", f"text/x.py: {name}: say depth, not spec length")
        for name in ("SpecLength", "spec_lengths", "_min_spec_length")
    ),
    ("README.md", f"# Page\n\n{PROSE}\n\n`server/gone.py`", "README.md: names server/gone.py"),
    ("server/app.py", "depth = 1", "docs/architecture.md: server/app.py has no App"),
    ("docs/architecture.md", TABLE, "docs/architecture.md: 0 calls name 0 functions"),
    ("docs/architecture.md", ARCHITECTURE, "the table of folders and the tree differ in docs/"),
    ("text/x.py", f'"""See ``{FILE}``."""', f"text/x.py: name {FILE} by its path from the root"),
    ("docs/x.md", "# Page\n\n- a list", "docs/x.md: begins with no prose"),
    ("text/x.py", "'pip install eaglegate'", "text/x.py: no registry has a package eaglegate"),
    ("docs/x.md", f"# Page\n\n{PROSE} '.[gone]'.", "docs/x.md: there is no extra gone"),
    ("src/eaglegate/__init__.py", "\n" * (LINES["src"] + 1), f"src/: {LINES['src'] + 1} lines"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "text", "fault"), PLANTED, ids=[fault for *_, fault in PLANTED])
def test_a_planted_fault_is_found(tmp_path: Path, path: str, text: str | None, fault: str) -> None:
    files = list_files()
    changed = files[path].replace('"features", ', "") if text is None else text
    faults = find_faults(Tree(write_tree(tmp_path, files | {path: changed})))
    assert [line for line in faults if fault in line], faults


def test_circles_are_found(tmp_path: Path) -> None:
    """Of modules, and of folders whose modules form none."""
    write_tree(
        tmp_path,
        list_files()
        | {
            "text/a.py": "if TYPE_CHECKING:\n    import eaglegate.text.b",
            "text/b.py": "from eaglegate.text import a",
            "server/apis/chat/a.py": "import eaglegate.server.apis.shared.b",
            "server/apis/chat/c.py": "",
            "server/apis/shared/b.py": "import eaglegate.server.apis.chat.c",
        },
    )
    circles = [fault.partition(": imports in a circle")[0] for fault in find_faults(Tree(tmp_path))]
    assert circles == ["server/apis", "the package"]


@pytest.mark.parametrize("path", ["engine/machine.py", "server/backends/remote.py", "features/"])
def test_a_rule_about_files_that_are_gone_fails(tmp_path: Path, path: str) -> None:
    files = {name: text for name, text in list_files().items() if not name.startswith(path)}
    faults = find_faults(Tree(write_tree(tmp_path, files)))
    assert [fault for fault in faults if fault.startswith(path.removesuffix(".py"))]


def test_top_folders_are_few(tmp_path: Path) -> None:
    more = {f"folder{number}/x.txt": "" for number in range(9)}
    faults = find_faults(Tree(write_tree(tmp_path, list_files() | more)))
    assert "there are 18 top folders; at most 13" in faults
