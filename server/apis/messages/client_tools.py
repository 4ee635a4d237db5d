"""Tools that Anthropic defines and the client runs, as the functions they are offered as.

A request names them by type alone, because Anthropic's models know their parameters. Other models
are given those parameters as a schema. A call comes back under the tool's name, as the client
expects it, and its result is read like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

VERSIONED = re.compile(r"(bash|text_editor|computer|memory)_(\d{8})")
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
EDITOR_DESCRIPTION = (
    "Views, creates and edits text files. str_replace replaces old_str, which must occur exactly "
    "once, with new_str. insert puts text after line insert_line."
)
CLICKS = ("left_click", "right_click", "middle_click", "double_click")
FIRST_ACTIONS = (
    *CLICKS, "key", "type", "mouse_move", "left_click_drag", "screenshot", "cursor_position",
)  # fmt: skip
LATER_ACTIONS = (
    "triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait",
)  # fmt: skip


def client_function(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The function a tool of this type is offered as; None for a type that is no client tool.

    ``options`` are the other members of the tool, such as the size of the display.
    """
    found = VERSIONED.fullmatch(kind)
    if found is None:
        return None
    description, parameters = MAKERS[found[1]](int(found[2]), options)
    return {"name": name, "description": description, "parameters": parameters}


Made = tuple[str, dict[str, Any]]
"""A description, and the schema of the parameters."""


def _bash(version: int, options: Mapping[str, Any]) -> Made:  # noqa: ARG001
    """Neither parameter is required: a call has one or the other."""
    properties = {
        "command": TEXT | {"description": "The command to run."},
        "restart": {"type": "boolean", "description": "Restart the shell; no command is needed."},
    }
    return "Runs commands in a shell that keeps its state between calls.", _schema(properties)


def _text_editor(version: int, options: Mapping[str, Any]) -> Made:  # noqa: ARG001
    commands: tuple[str, ...] = ("view", "create", "str_replace", "insert")
    if version < 20250429:
        commands = (*commands, "undo_edit")
    inserted = "insert_text" if version >= 20250429 else "new_str"
    properties = _file_properties() | {"command": _one_of(commands), inserted: TEXT}
    return EDITOR_DESCRIPTION, _schema(properties, "command", "path")


def _memory(version: int, options: Mapping[str, Any]) -> Made:  # noqa: ARG001
    commands = ("view", "create", "str_replace", "insert", "delete", "rename")
    renamed = {"old_path": TEXT, "new_path": TEXT}
    properties = _file_properties() | {"command": _one_of(commands), "insert_text": TEXT} | renamed
    return f"Keeps notes in files below /memories. {EDITOR_DESCRIPTION}", _schema(
        properties, "command"
    )


def _computer(version: int, options: Mapping[str, Any]) -> Made:
    actions: tuple[str, ...] = (
        FIRST_ACTIONS if version < 20250124 else (*FIRST_ACTIONS, *LATER_ACTIONS)
    )
    properties: dict[str, Any] = {
        "action": _one_of(actions),
        "coordinate": _numbers(2) | {"description": "[x, y] in pixels from the top left corner."},
        "text": TEXT | {"description": "The text to type, or the keys to press, as ctrl+s."},
    }
    if version >= 20250124:
        properties |= {
            "start_coordinate": _numbers(2) | {"description": "Where left_click_drag begins."},
            "scroll_direction": _one_of(("up", "down", "left", "right")),
            "scroll_amount": WHOLE,
            "duration": {"type": "number", "description": "Seconds, of hold_key and wait."},
        }
    if options.get("enable_zoom") is True:
        properties["action"] = _one_of((*actions, "zoom"))
        properties["region"] = _numbers(4) | {"description": "[x1, y1, x2, y2] of zoom."}
    size = [options.get(f"display_{side}_px") for side in ("width", "height")]
    display = f" of {size[0]} x {size[1]} pixels" if all(type(n) is int for n in size) else ""
    return f"Controls the mouse and the keyboard of a display{display}.", _schema(
        properties, "action"
    )


MAKERS = {"bash": _bash, "text_editor": _text_editor, "memory": _memory, "computer": _computer}


def _file_properties() -> dict[str, Any]:
    return {
        "path": TEXT,
        "file_text": TEXT | {"description": "The content of a file to create."},
        "old_str": TEXT,
        "new_str": TEXT,
        "insert_line": WHOLE,
        "view_range": _numbers(2) | {"description": "First and last line to view."},
    }


def _schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    given = {"required": [*required]} if required else {}
    return {"type": "object", "properties": dict(properties), **given}


def _one_of(values: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "enum": [*values]}


def _numbers(count: int) -> dict[str, Any]:
    return {"type": "array", "items": WHOLE, "minItems": count, "maxItems": count}
