"""Tools that OpenAI defines and the client runs: a shell, and patches to files.

The model sees each tool as a function. Its call is written as the item that the client expects
(``shell_call``), and such items are read back as calls of that function. The tool's output is shown
to the model as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from eaglegate.server.errors import InvalidRequest

Item = Mapping[str, Any]
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
WHOLE = {"type": "integer"}
OPERATIONS = ("create_file", "update_file", "delete_file")
IMAGE_TOOLS = ("computer", "computer_use_preview", "computer_use")
"""Tools that the client runs and that return screenshots."""


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs: its function, and the format of its calls and outputs."""

    description: str
    parameters: Mapping[str, Any]
    write: Callable[[dict[str, Any]], dict[str, Any]]
    """Converts the model's arguments to the members of a call's item."""
    read: Callable[[Item], dict[str, Any]]
    """Converts such an item to arguments."""
    read_output: Callable[[Item], str]


def is_client_tool(kind: str, options: Mapping[str, Any] | None) -> bool:
    """Return True if the client runs the tool. A shell in one of OpenAI's containers is hosted."""
    environment = (options or {}).get("environment")
    place = environment.get("type", "local") if isinstance(environment, dict) else "local"
    return kind in CLIENT_TOOLS and place == "local"


def check_readable(kind: str, path: str) -> None:
    """Raise InvalidRequest for a tool whose results are images."""
    if kind in IMAGE_TOOLS:
        raise InvalidRequest(
            f"'{path}' is of type '{kind}', which answers with screenshots; this model reads "
            "text only. Leave it out.",
            param=path,
            code="unsupported_parameter",
        )


def offer(kind: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the function that the model sees; ``options`` are the other members of the tool."""
    tool = CLIENT_TOOLS[kind]
    description = tool.description + _list_skills(options or {})
    function = {"name": kind, "description": description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _list_skills(options: Mapping[str, Any]) -> str:
    environment = options.get("environment") or {}
    skills = environment.get("skills") if isinstance(environment, dict) else None
    lines = [
        f"\n- {skill.get('name')}: {skill.get('description')} ({skill.get('path')})"
        for skill in skills or ()
        if isinstance(skill, dict)
    ]
    return "\nSkills, each a folder with instructions:" + "".join(lines) if lines else ""


def write_call(kind: str, text: str) -> dict[str, Any]:
    """Return the members of the call's item. Unreadable arguments become an empty call."""
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = None
    return CLIENT_TOOLS[kind].write(arguments if isinstance(arguments, dict) else {})


def read_call(item: Item) -> tuple[str, dict[str, Any]]:
    """Return the function's name and its arguments from an item."""
    kind = str(item["type"]).removesuffix("_call")
    return kind, CLIENT_TOOLS[kind].read(item)


def read_output(item: Item) -> tuple[str, str]:
    """Return the call's id and the text that the model sees.

    A local shell's output has only one id, which is the call's.
    """
    kind = str(item["type"]).removesuffix("_call_output")
    return item.get("call_id") or item["id"], CLIENT_TOOLS[kind].read_output(item)


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _texts(value: Any) -> list[str]:
    """Return a list of texts. A model may write a single text without the list."""
    if isinstance(value, str):
        return [value]
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _write_shell(arguments: dict[str, Any]) -> dict[str, Any]:
    action = {
        "commands": _texts(arguments.get("commands")),
        "timeout_ms": _whole(arguments.get("timeout_ms")),
        "max_output_length": _whole(arguments.get("max_output_length")),
    }
    return {"action": action, "environment": {"type": "local"}}


def _write_local_shell(arguments: dict[str, Any]) -> dict[str, Any]:
    env = arguments.get("env")
    variables = env.items() if isinstance(env, dict) else ()
    action = {
        "type": "exec",
        "command": _texts(arguments.get("command")),
        "env": {name: value for name, value in variables if isinstance(value, str)},
        "timeout_ms": _whole(arguments.get("timeout_ms")),
        "user": _text(arguments.get("user")),
        "working_directory": _text(arguments.get("working_directory")),
    }
    return {"action": action}


def _write_patch(arguments: dict[str, Any]) -> dict[str, Any]:
    kind = arguments.get("type")
    operation = {
        "type": kind if kind in OPERATIONS else "update_file",
        "path": _text(arguments.get("path")) or "",
    }
    if kind != "delete_file":
        operation["diff"] = _text(arguments.get("diff")) or ""
    return {"operation": operation}


def _read_action(item: Item) -> dict[str, Any]:
    members = _without_none(item["action"]).items()
    return {name: value for name, value in members if name != "type" and value != {}}


def _read_chunk(chunk: Item) -> str:
    outcome = chunk.get("outcome") or {}
    ending = "timed out" if outcome.get("type") == "timeout" else f"exit {outcome.get('exit_code')}"
    parts = [chunk.get("stdout") or "", chunk.get("stderr") or "", f"[{ending}]"]
    return "\n".join(part.rstrip("\n") for part in parts if part)


def _read_local_output(item: Item) -> str:
    output = item["output"]
    return output if isinstance(output, str) else orjson.dumps(output).decode()


def _read_patch_output(item: Item) -> str:
    output = item.get("output") or ""
    has_failed = item.get("status") == "failed"
    return f"Error: {output or 'the patch failed'}" if has_failed else output or "Done."


CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "shell": ClientTool(
        "Runs shell commands on the user's machine.",
        {
            "type": "object",
            "properties": {
                "commands": TEXTS | {"description": "Commands to run, each in a shell."},
                "timeout_ms": WHOLE,
                "max_output_length": WHOLE,
            },
            "required": ["commands"],
        },
        _write_shell,
        _read_action,
        lambda item: "\n".join(map(_read_chunk, item["output"])),
    ),
    "local_shell": ClientTool(
        "Runs a command on the user's machine.",
        {
            "type": "object",
            "properties": {
                "command": TEXTS | {"description": "The program and its arguments."},
                "env": {"type": "object", "additionalProperties": TEXT},
                "timeout_ms": WHOLE,
                "user": TEXT,
                "working_directory": TEXT,
            },
            "required": ["command"],
        },
        _write_local_shell,
        _read_action,
        _read_local_output,
    ),
    "apply_patch": ClientTool(
        "Creates, updates or deletes a file. A diff has context lines that begin with a space, "
        "removed lines with - and added lines with +, below lines of @@; that of a new file has "
        "only added lines.",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": [*OPERATIONS]},
                "path": TEXT,
                "diff": TEXT,
            },
            "required": ["type", "path"],
        },
        _write_patch,
        lambda item: _without_none(item["operation"]),
        _read_patch_output,
    ),
}
CALLS = tuple(f"{kind}_call" for kind in CLIENT_TOOLS)
OUTPUTS = tuple(f"{kind}_output" for kind in CALLS)
