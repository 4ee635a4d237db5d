"""Conversion of Anthropic's request to a Job.

Tools that Anthropic defines and the client runs appear in a request only by type, because
Anthropic's models know their parameters. Other models get those parameters as a schema. A call is
returned under the tool's name, as the client expects, and its result is read like any other.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from eaglegate.engine.types import Constraint, Sampling
from eaglegate.server.access.caller import Caller
from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.messages.request import (
    Container,
    CountTokensRequest,
    MessagesRequest,
    MessageTool,
    system_message,
    template_messages,
)
from eaglegate.server.apis.messages.tool_changes import list_tools
from eaglegate.server.apis.shared import tools
from eaglegate.server.apis.shared.constraints import NO_CONSTRAINT, schema_constraint
from eaglegate.server.apis.shared.template import (
    MediaPolicy,
    effort_kwargs,
    own_template,
    template_kwargs,
    thinking_kwargs,
)
from eaglegate.server.apis.shared.to_job import (
    choose_metrics,
    default_sampling,
    make_job,
    read_stops,
    resolve_model,
)
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.job import Conversation, Display, Job, Question, ToolPolicy
from eaglegate.server.generation.served_model import ServedModel

MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
FORMAT = "output_config.format"
FUNCTION_TYPES = (None, "custom", "function")


def make_messages_job(request: MessagesRequest, served_model: ServedModel, caller: Caller) -> Job:
    """Make the Job. Raises InvalidRequest and NotFound."""
    model = resolve_model(request.model, served_model, caller)
    return make_job(
        request,
        served_model,
        caller,
        id=f"msg_{uuid.uuid4().hex[:24]}",
        api="messages",
        model=model,
        question=_make_question(request, served_model, caller.notices),
        display=Display(
            stream=bool(request.stream),
            wants_prompt=True,
            spec_metrics=choose_metrics(request, served_model),
            return_steps=bool(request.return_steps),
        ),
        affinity=_affinity(request),
        reasons=request.thinking is not None and request.thinking.type != "disabled",
    )


def _make_question(
    request: MessagesRequest, served_model: ServedModel, notices: Notices
) -> Question:
    conversation, policy = _make_conversation(request, served_model, notices)
    param, constraint = _read_format(request)
    _check_container(request, notices)
    _check_edits(request, notices)
    return Question(
        prompts=(conversation,),
        sampling=_sampling(request, served_model),
        stop=read_stops(request.stop_sequences, "stop_sequences"),
        tool_policy=policy,
        constraint=constraint,
        grammar_param=param,
    )


def _read_format(request: MessagesRequest) -> tuple[str, Constraint | None]:
    """Return the field that a grammar comes from, and the constraint of the answer's format.

    Raises InvalidRequest.
    """
    output_format = request.output_config.format if request.output_config else None
    if output_format is not None and request.output_format is not None:
        raise InvalidRequest(
            f"'output_format' and '{FORMAT}' are mutually exclusive; give one.",
            param="output_format",
        )
    shape = output_format or request.output_format
    if shape is None:
        return NO_CONSTRAINT
    param = FORMAT if output_format else "output_format"
    return param, schema_constraint(shape.schema_, f"{param}.schema", strict=True)


def _check_container(request: MessagesRequest, notices: Notices) -> None:
    """Refuse skills, which are instructions to the model, and ignore the rest of a container, which
    serves only tools that Anthropic runs. Raises InvalidRequest.
    """
    container = request.container
    if isinstance(container, Container) and container.skills:
        raise InvalidRequest(
            "'container.skills' is not supported: this gateway has no skills. Give instructions in "
            "'system'.",
            param="container.skills",
            code="unsupported_parameter",
        )
    if container is not None:
        notices.ignore("container")


def _check_edits(request: MessagesRequest, notices: Notices) -> None:
    """Ignore edits that clear content, and refuse others.

    Without clearing, the model only sees more than it needs. A compaction, however, replaces the
    conversation by a summary from which the client continues.
    """
    management = request.context_management
    for index, edit in enumerate((management and management.edits) or ()):
        if not edit.type.startswith("clear_"):
            path = f"context_management.edits[{index}]"
            raise InvalidRequest(
                f"{path!r} of type {edit.type!r} is not supported: this gateway summarizes no "
                "conversations. Leave it out, and send a summary of your own when the conversation "
                "is too long.",
                param=path,
                code="unsupported_parameter",
            )
        if edit.type.startswith("clear_tool_uses") or edit.keep != "all":
            notices.ignore("context_management")


def _affinity(request: MessagesRequest) -> str | None:
    """Return the session: clients with sessions put the session id into ``metadata.user_id``."""
    session = (request.metadata or {}).get("user_id")
    return session if isinstance(session, str) and session else None


def make_counted_conversation(
    request: CountTokensRequest, served_model: ServedModel, caller: Caller
) -> Conversation:
    """Return the conversation whose tokens are counted."""
    resolve_model(request.model, served_model, caller)
    return _make_conversation(request, served_model, caller.notices)[0]


def _make_conversation(
    request: CountTokensRequest, served_model: ServedModel, notices: Notices
) -> tuple[Conversation, ToolPolicy]:
    """Make the conversation and the policy of its tools. If the last message is the assistant's,
    the answer continues it.
    """
    policy = _make_policy(request, served_model, notices)
    media = MediaPolicy.of(served_model, notices)
    continues = request.messages[-1].role == "assistant"
    variables = request.chat_template_kwargs
    conversation = Conversation(
        messages=(*system_message(request), *template_messages(request, media)),
        tools=policy.tools if policy.choice != "none" else (),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        template_kwargs=template_kwargs(served_model, variables, **_thinking(request)),
        template=own_template(served_model, variables),
        images=media.check_images(media.images),
    )
    return conversation, policy


def _sampling(request: MessagesRequest, served_model: ServedModel) -> Sampling:
    return replace(
        default_sampling(request, served_model),
        max_tokens=request.max_tokens,
        thinking_token_budget=_budget(request, served_model),
    )


def _budget(request: MessagesRequest, served_model: ServedModel) -> int | None:
    """Return the thinking budget. It is ignored if the engine cannot enforce one, because
    Anthropic's clients always send it.
    """
    thinking, has_budget = request.thinking, served_model.thinking_budget is True
    is_enabled = thinking is not None and thinking.type == "enabled"
    return thinking.budget_tokens if thinking and is_enabled and has_budget else None


def _thinking(request: CountTokensRequest) -> dict[str, Any]:
    """Return the template variables for thinking. Without ``thinking``, the model's default
    applies.
    """
    kwargs = effort_kwargs(request.output_config.effort if request.output_config else None)
    if request.thinking is not None:
        kwargs |= thinking_kwargs(request.thinking.type != "disabled")
    return kwargs


def _make_policy(
    request: CountTokensRequest, served_model: ServedModel, notices: Notices
) -> ToolPolicy:
    requested_choice = request.tool_choice
    functions, hosted_tools = _list_offers(request, notices)
    if requested_choice is None:
        return tools.make_policy(functions, None, None, served_model)
    if (requested_choice.type == "tool") != (requested_choice.name is not None):
        raise InvalidRequest(
            "'tool_choice.name' is required with type 'tool', and allowed only then.",
            param="tool_choice",
        )
    names = () if requested_choice.name is None else (requested_choice.name,)
    choice = tools.ToolSelection(
        MODES[requested_choice.type], names, single=requested_choice.type == "tool"
    )
    parallel = not requested_choice.disable_parallel_tool_use
    return tools.make_policy(functions, choice, parallel, served_model, hosted_tools=hosted_tools)


def _list_offers(
    request: CountTokensRequest, notices: Notices
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the client's tools as functions, and the types of hosted tools by name."""
    functions: list[dict[str, Any]] = []
    hosted_tools: dict[str, str] = {}
    for index, tool in enumerate(list_tools(request)):
        function = _function(tool, f"tools[{index}].name")
        if function is not None:
            functions.append({"type": "function", "function": function})
        else:
            tools.ignore_hosted(str(tool.type), notices)
            hosted_tools[tool.name or str(tool.type)] = str(tool.type)
    return functions, hosted_tools


def _function(tool: MessageTool, param: str) -> dict[str, Any] | None:
    """Return a tool as a function; None for a hosted tool, which may have no name. Raises
    InvalidRequest.
    """
    if tool.name is None:
        if tool.type in FUNCTION_TYPES:
            raise InvalidRequest(f"'{param}' is missing: a tool needs a name.", param=param)
        if TOOLSET.fullmatch(str(tool.type)):
            raise InvalidRequest(
                f"'{param.removesuffix('.name')}' is of type '{str(tool.type)[:64]}', whose tools "
                "the client runs, but whose calls this gateway cannot write. Offer the tools one "
                "by one, or a 'computer_20251124'.",
                param=param.removesuffix(".name"),
                code="unsupported_parameter",
            )
        return None
    if tool.allowed_callers and "direct" not in tool.allowed_callers:
        raise InvalidRequest(
            f"'{param.removesuffix('name')}allowed_callers' must contain 'direct': the model calls "
            f"tools itself here; given {tool.allowed_callers[:4]}.",
            param=f"{param.removesuffix('name')}allowed_callers",
        )
    function: dict[str, Any] | None = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _with_examples(tool.input_schema, tool.input_examples),
    }
    if tool.type not in FUNCTION_TYPES:
        function = client_function(str(tool.type), tool.name, tool.model_extra or {})
    if function is None:
        return None
    members = function | {"strict": tool.strict}
    return {key: value for key, value in members.items() if value is not None}


def _with_examples(
    schema: dict[str, Any] | None, examples: Sequence[dict[str, Any]] | None
) -> dict[str, Any] | None:
    """Add examples under JSON Schema's own keyword, so that a template shows them."""
    return {**(schema or {}), "examples": [*examples]} if examples else schema


TOOLSET = re.compile(r"(browser|computer)_toolset_\d{8}")
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
    """Return the function for a tool of this type; None if the client does not run it.

    ``options`` are the other members of the tool, such as the size of the display.
    """
    match = VERSIONED.fullmatch(kind)
    if match is None:
        return None
    description, parameters = MAKERS[match[1]](int(match[2]), options)
    return {"name": name, "description": description, "parameters": parameters}


Made = tuple[str, dict[str, Any]]
"""Description of a function, and the schema of its parameters."""


def _bash(version: int, options: Mapping[str, Any]) -> Made:  # noqa: ARG001
    """Describe the shell. Neither parameter is required, because a call has one or the other."""
    properties = {
        "command": TEXT | {"description": "The command to run."},
        "restart": {"type": "boolean", "description": "Restart the shell; no command is needed."},
    }
    return "Runs commands in a shell that keeps its state between calls.", _schema(properties)


def _text_editor(version: int, options: Mapping[str, Any]) -> Made:  # noqa: ARG001
    commands: tuple[str, ...] = ("view", "create", "str_replace", "insert")
    if version < 20250429:
        commands = (*commands, "undo_edit")
    text_member = "insert_text" if version >= 20250429 else "new_str"
    properties = _file_properties() | {"command": _one_of(commands), text_member: TEXT}
    return EDITOR_DESCRIPTION, _schema(properties, "command", "path")


def _memory(version: int, options: Mapping[str, Any]) -> Made:  # noqa: ARG001
    commands = ("view", "create", "str_replace", "insert", "delete", "rename")
    properties = _file_properties() | {
        "command": _one_of(commands), "insert_text": TEXT, "old_path": TEXT, "new_path": TEXT,
    }  # fmt: skip
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


def _schema(properties: Mapping[str, Any], *required_names: str) -> dict[str, Any]:
    requirement = {"required": [*required_names]} if required_names else {}
    return {"type": "object", "properties": dict(properties), **requirement}


def _one_of(values: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "enum": [*values]}


def _numbers(count: int) -> dict[str, Any]:
    return {"type": "array", "items": WHOLE, "minItems": count, "maxItems": count}
