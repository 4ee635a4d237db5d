"""Generator of the documentation's reference pages from the code.

``python -m scripts.reference`` rewrites docs/reference: the settings, from their dataclasses; the
commands, from their own ``--help``; the endpoints, from the API's OpenAPI document; the advisories,
from their table. A test compares
the pages with the code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, Field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from eaglegate.engine.advisories import ADVISORIES
from eaglegate.lab.prove.settings import ProveSettings
from eaglegate.server.__main__ import main as run_command
from eaglegate.server.backends.line import ModelArguments
from eaglegate.server.cli.feature_table import list_settings_classes
from eaglegate.server.flags import ENV_PREFIX, flag, list_settings
from eaglegate.server.settings import Settings

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- made by python -m scripts.reference: change the code instead -->\n"
COMMANDS = (
    "explain", "audit show", "audit replay", "audit release",
    "top", "parse", "draft", "canary", "bench", "replay", "capture",
    "drafts compare", "drafts log", "improve",
)  # fmt: skip
WIDTH = "98"
"""Columns of ``--help``."""
METHODS = ("get", "post", "put", "delete")
COMMON = ("400", "401", "403", "404", "408", "413", "415", "429", "431", "500", "503", "504")
KINDS: Mapping[str, type] = {
    "serve and check": Settings,
    "Model of the workers, with --upstream": ModelArguments,
    **{f"Feature {kind.NAME}": kind for kind in list_settings_classes() if fields(kind)},
    "prove": ProveSettings,
}
SETTINGS_INTRO = """\
Look up a flag, variable or key of the configuration here. Which of them to set is explained on the
pages for operators, beginning with [deployment](../deploy.md).

Each setting is a flag of `eaglegate serve` and `check`, a variable of the environment and a key of
the YAML file that `--config` names. A flag takes precedence over the environment, and the
environment over the file. `--no-X` switches a switch off. Where the gateway runs vLLM itself, every
engine flag of `vllm serve` works beside them; [flags of vllm serve](../flags.md) covers those of
its front end.
"""
COMMANDS_INTRO = """\
Look up the options of a command here. What each command is for is explained on its own page.
[Settings](settings.md) lists the options of `serve`, `check` and `prove`.
"""
ENDPOINTS_INTRO = """\
Look up the schema of a request or response here. To learn the API, read [API](../api.md) first.

These are all paths, as `GET /openapi.json` describes them. Error bodies have the shape of
the API that they belong to.
"""

ADVISORIES_INTRO = """\
Look up a name in brackets here, such as `[pipeline-order]`, if the gateway warned of it.

Each row is a combination of a version of vLLM with settings that is known to damage text in
silence, or to lose a draft. It was confirmed by reading the sources of the versions that it names.
Older ones were not read, and builds without a release number match no row. A row without an end is
in vLLM 0.33, the newest version that was read.

`eaglegate check` shows the rows that match a command line; `serve` shows those of its engine, as
warnings and in the banner. [Workers](../workers.md) are judged by their version and by what they
tell: all of their configuration in vLLM's development mode (`VLLM_SERVER_DEV_MODE=1`), else their
prefix cache. The rest is taken to be vLLM's default. With `--strict-advisories` such an engine is
not started, and such a worker gets no requests.
"""


def render_pages(openapi: Mapping[str, Any]) -> dict[str, str]:
    """Return the pages by file name."""
    pages = {
        "settings.md": ("Settings", SETTINGS_INTRO, render_settings()),
        "commands.md": ("Commands", COMMANDS_INTRO, render_commands()),
        "endpoints.md": ("Endpoints", ENDPOINTS_INTRO, render_endpoints(openapi)),
        "advisories.md": ("Advisories", ADVISORIES_INTRO, render_advisories()),
    }
    return {
        name: "\n".join([f"# {title}", "", f"{MADE}", intro, *lines]).rstrip() + "\n"
        for name, (title, intro, lines) in pages.items()
    }


def render_settings() -> Iterator[str]:
    """Yield a table for each heading of ``--help``."""
    for title, kind in KINDS.items():
        yield f"## {title}\n"
        for heading, members in groupby(list_settings(kind), key=lambda named: named[0]):
            if heading not in ("gateway", title):
                yield f"### {heading}\n"
            yield "| flag | environment | default | meaning |\n|---|---|---|---|"
            yield from (_render_setting(item) for _, item in members)
            yield ""


def _render_setting(item: Field[Any]) -> str:
    default = item.default
    if default is MISSING or default in (None, (), ""):
        shown = ""
    elif isinstance(default, bool):
        shown = "on" if default else "off"
    else:
        shown = f"`{' '.join(map(str, default)) if isinstance(default, tuple) else default}`"
    choices = ", ".join(f"`{choice}`" for choice in item.metadata.get("choices") or ())
    meaning = item.metadata["help"] + (f": {choices}" if choices else "")
    name = f"{ENV_PREFIX}{item.name.upper()}"
    return f"| `{flag(item.name)}` | `{name}` | {shown} | {_escape(meaning)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def render_commands() -> Iterator[str]:
    """Yield the help of each command."""
    yield "```text"
    yield _run("--help")
    yield "```\n"
    for command in COMMANDS:
        yield f"## {command}\n"
        yield "```text"
        yield _run(*command.split(), "--help")
        yield "```\n"


def _run(*arguments: str) -> str:
    """Return the output of a command. Python wraps help to the width of the terminal."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), WIDTH
    out = io.StringIO()
    try:
        with redirect_stdout(out), suppress(SystemExit):
            run_command(arguments)
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return out.getvalue().rstrip()


def render_endpoints(openapi: Mapping[str, Any]) -> Iterator[str]:
    """Yield a section per path, with the fields of its body, then the common statuses."""
    for path, methods in sorted(openapi["paths"].items()):
        for method in (name for name in METHODS if name in methods):
            yield from _render_operation(f"{method.upper()} {path}", methods[method], openapi)
    yield "## Statuses of errors\n"
    yield "| status | meaning |\n|---|---|"
    chat = openapi["paths"]["/v1/chat/completions"]["post"]["responses"]
    yield from (f"| {status} | {chat[status]['description']} |" for status in COMMON)


def _render_operation(
    title: str, operation: Mapping[str, Any], openapi: Mapping[str, Any]
) -> Iterator[str]:
    yield f"## {title}\n"
    if about := operation.get("description"):
        yield f"{_escape(about)}\n"
    for item in operation.get("parameters", ()):
        yield f"- `{item['name']}` in the {item['in']}: {_name_type(item['schema'])}"
    if operation.get("parameters"):
        yield ""
    for name in _list_bodies(operation):
        fields = openapi["components"]["schemas"][name].get("properties", {})
        yield "| field | type |\n|---|---|"
        yield from (f"| `{field}` | {_name_type(schema)} |" for field, schema in fields.items())
        yield ""


def render_advisories() -> Iterator[str]:
    """Yield a table with a row for each advisory."""
    yield "| name | vLLM | condition | consequence | what to do | threads |"
    yield "|---|---|---|---|---|---|"
    for row in ADVISORIES:
        since, until = (".".join(map(str, end or ())) for end in (row.since, row.until))
        versions = f"{since} to before {until}" if until else f"since {since}"
        threads = ", ".join(
            f"[{number}](https://github.com/vllm-project/vllm/issues/{number})"
            for number in row.threads
        )
        cells = (f"`{row.name}`", versions, row.condition, row.consequence, row.remedy, threads)
        yield f"| {' | '.join(cells)} |"


def _list_bodies(operation: Mapping[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    branches = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [branch["$ref"].rpartition("/")[2] for branch in branches if "$ref" in branch]


def _name_type(schema: Mapping[str, Any]) -> str:
    """Describe a JSON schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            names = dict.fromkeys(map(_name_type, schema[key]))
            return " or ".join(name for name in names if name != "null")
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_name_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def main() -> None:
    from tests.server.conftest import Lab

    FOLDER.mkdir(exist_ok=True)
    for name, text in render_pages(Lab().app.openapi()).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
