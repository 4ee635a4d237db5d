"""Chat templates as Hugging Face defines them, run in a Jinja sandbox.

Messages are converted the way vLLM converts them, and template variables are filtered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from eaglegate.text.rendering.template_cost import check_product, is_suspect

TAG = "<eaglegate: the answer goes on here> "
"""Mark at the end of a final message, after which the template's text is dropped."""


TemplateMessage = dict[str, Any]
BILLING = re.compile(
    r"x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\s]*(?:;|(?=\s|$)))*[ \t]*\n?"
)
"""Beginning of some clients' prompts. It differs each time and would defeat every prefix cache."""


INSTRUCTIONS = ("system", "developer")
"""Roles whose messages give the model instructions."""
ROLES = (*INSTRUCTIONS, "user", "assistant", "tool", "function")
"""Roles of the APIs. A template may have others, such as observation."""
PROBE = "eaglegate-probe"


IMAGE = {"type": "image"}
"""Part of a message at the place of an image, for which a template writes a placeholder."""


def has_images(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(map(count_images, messages))


def count_images(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    return 0 if isinstance(content, str) else sum(map(_is_image, content or ()))


def _is_image(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image"


def convert_messages(
    messages: Sequence[Mapping[str, Any]], *, in_parts: bool
) -> list[TemplateMessage]:
    """Convert messages for a template. Raises ValueError for content that it cannot show."""
    return [_convert_message(message, in_parts) for message in messages]


def merge_developer(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Merge developer messages into the system message, for templates without the role."""
    if not any(message["role"] == "developer" for message in messages):
        return list(messages)
    converted_messages = [_convert_to_system(message) for message in messages]
    systems = [message for message in converted_messages if message["role"] == "system"]
    if len(systems) == 1 and converted_messages[0] is systems[0]:
        return converted_messages
    texts = [_join_text(message.get("content", "")) for message in systems]
    system_message = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [
        system_message,
        *(message for message in converted_messages if message["role"] != "system"),
    ]


def merge_refused(
    messages: Sequence[Mapping[str, Any]], accepted_roles: Collection[str]
) -> list[Mapping[str, Any]]:
    """Merge instructions after the first message into it, unless their role is in
    ``accepted_roles``."""
    late_instructions = [
        m for m in messages[1:] if m["role"] in INSTRUCTIONS and m["role"] not in accepted_roles
    ]
    if not late_instructions:
        return list(messages)
    has_head = messages[0]["role"] in INSTRUCTIONS
    head = messages[0] if has_head else {"role": "system", "content": ""}
    texts = [_join_text(message.get("content") or "") for message in (head, *late_instructions)]
    late_ids = set(map(id, late_instructions))
    tail = messages[1:] if has_head else messages
    other_messages = [m for m in tail if id(m) not in late_ids]
    return [{**head, "content": "\n\n".join(text for text in texts if text)}, *other_messages]


def _convert_to_system(message: TemplateMessage) -> TemplateMessage:
    if message["role"] != "developer":
        return message
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _convert_message(message: Mapping[str, Any], in_parts: bool) -> TemplateMessage:
    role = message["role"]
    content = _convert_content(role, message.get("content"), in_parts)
    out: TemplateMessage = {"role": role, "content": content}
    if role == "assistant":
        out |= _convert_assistant(message)
    elif role == "tool" and "tool_call_id" in message:
        out["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        out["name"] = message["name"]
    if role == "developer":
        out["tools"] = message.get("tools")
    return out


def _convert_content(role: str, content: Any, in_parts: bool) -> str | list[dict[str, Any]]:
    needs_parts = role == "system"
    if isinstance(content, str) and not (in_parts or needs_parts):
        return content
    parts = _convert_parts(content)
    if any(map(_is_image, parts)):
        _check_images(role, in_parts)
        return parts
    if needs_parts:
        texts = ((part, strip_billing(part["text"])) for part in parts)
        parts = [{**part, "text": text} for part, text in texts if text or not part["text"]]
    if role == "tool" and in_parts:
        return "\n".join(part["text"] for part in parts)
    return parts if in_parts else "\n".join(part["text"] for part in parts if part["text"])


def _check_images(role: str, in_parts: bool) -> None:
    if role in INSTRUCTIONS:
        raise ValueError(f"a message of the role {role!r} cannot have images")
    if not in_parts:
        raise ValueError(
            "it takes the content of a message as one text, in which images have no place"
        )


def _convert_parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_convert_part(part) for part in content]


def _convert_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind, text = part.get("type", "text"), part.get("text")
    if kind == "image":
        return IMAGE
    if kind != "text" or not isinstance(text, str):
        raise ValueError(f"content of type {kind!r} is not text; this model takes only text")
    return {"type": "text", "text": text}


def strip_billing(text: str) -> str:
    """Return a system prompt's text, or a part of it, without the billing fields that it begins
    with.
    """
    match = BILLING.match(text)
    return text[match.end() :] if match else text


def _convert_assistant(message: Mapping[str, Any]) -> TemplateMessage:
    out: TemplateMessage = {}
    if calls := message.get("tool_calls"):
        out["tool_calls"] = [_convert_call(call) for call in calls]
    if (reasoning := message.get("reasoning")) is not None:
        out["reasoning"] = out["reasoning_content"] = reasoning
    return out


def _convert_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Parse a call's arguments: templates write arguments themselves and need an object."""
    function = call["function"]
    arguments = parse_arguments(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def parse_arguments(arguments: Any) -> dict[str, Any]:
    """Parse arguments that a model wrote. Anything but a JSON object becomes an empty object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return {}
    return arguments if isinstance(arguments, dict) else {}


RESERVED = frozenset((
    "messages", "conversation", "tools", "add_generation_prompt", "continue_final_message",
    "chat_template", "chat_template_kwargs", "tokenizer_kwargs", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    "additional_special_tokens",
))  # fmt: skip
"""Variables that a request may not set: ``apply_chat_template`` or the gateway sets them."""
GLOBALS = frozenset((
    "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner",
))  # fmt: skip
"""Names that a template's environment defines."""
CODED = frozenset((
    "enable_thinking", "thinking", "thinking_effort", "preserve_thinking", "reasoning_effort",
    "documents",
))  # fmt: skip
"""Variables of models whose prompts are built in code, so that no template names them."""


def filter_variables(variables: Mapping[str, Any] | None, names: Iterable[str]) -> dict[str, Any]:
    """Return the variables that a request may set, among ``names``, which the template reads."""
    if not variables:
        return {}
    readable_names = frozenset(names) - RESERVED - GLOBALS
    return {name: value for name, value in variables.items() if name in readable_names}


class GenerationTag(Extension):
    """``{% generation %}`` marks model output for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body)


DICT_ATTRIBUTES = frozenset(dir(dict))
PLAIN_TYPES = frozenset({dict, list, str, LoopContext})
"""Types whose attributes depend on nothing but the type."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with shortcuts for the most frequent operations of templates.

    Members of plain dicts are read without the exception that Jinja raises and catches for each.
    Macros are called directly: they are safe and take the evaluation context, which Jinja checks
    again on every call. For plain types, the safety of an attribute is cached by type.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) not in PLAIN_TYPES:
            return super().is_safe_attribute(obj, attr, value)
        key = type(obj), attr
        if key not in self._safe:
            self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return self._safe[key]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_product(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(function) is not Macro:
            return super().call(context, function, *args, **kwargs)
        kwargs.pop("_block_vars", None)
        kwargs.pop("_loop_vars", None)
        return function(context.eval_ctx, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is not dict or attribute in DICT_ATTRIBUTES:
            return super().getattr(obj, attribute)
        return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)


REFUSALS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
)  # fmt: skip
"""Exceptions besides ValueError that a template may raise."""


class ChatTemplate:
    """Compiled chat template. Its methods raise ValueError if the template raises."""

    def __init__(self, source: str) -> None:
        environment = _create_environment()
        try:
            tree = environment.parse(source)
            self.is_suspect = is_suspect(tree)
            """True if the template may take much time or memory and needs a child process."""
            self.is_slow = self.is_suspect
            """True if the template is too slow for the event loop."""
            self._code = environment.compile("" if self.is_suspect else source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error
        self._environment = environment
        self.source = source
        self.variables = _find_variables(tree, self.is_suspect)
        self.content_in_parts = _iterates_content(tree)
        """True if the template expects a message's content as a list of parts."""
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self._accepted: frozenset[str] | None = None

    @cached_property
    def _template(self) -> jinja2.Template:
        """Compiled template. Compiling evaluates constants, so the child compiles suspect ones."""
        code = self._environment.compile(self.source) if self.is_suspect else self._code
        return jinja2.Template.from_code(
            self._environment, code, self._environment.make_globals({})
        )

    @cached_property
    def _globals(self) -> dict[str, Any]:
        return dict(self._template.globals)

    def arrange(
        self, messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]
    ) -> list[Mapping[str, Any]]:
        """Return the messages in an order that the template takes.

        ``tokens`` are those that templates know by name. Raises ValueError for a role that
        neither APIs nor the template have.
        """
        for message in messages:
            role = message["role"]
            if role not in ROLES and not any(f"{q}{role}{q}" in self.source for q in "'\""):
                raise ValueError(f"the chat template does not have the role {role!r}")
        return merge_refused(messages, self.find_accepted(tokens))

    def find_accepted(self, tokens: Mapping[str, Any]) -> frozenset[str]:
        """Return the roles of instructions that the template shows after the first message.

        Some templates raise at such a message, others leave it out.
        """
        if self._accepted is None:
            probed_roles = INSTRUCTIONS if self.knows_developer else ("system",)
            refused_roles = {role for role in probed_roles if not self._shows_later(role, tokens)}
            self._accepted = frozenset(INSTRUCTIONS) - refused_roles
        return self._accepted

    def _shows_later(self, role: str, tokens: Mapping[str, Any]) -> bool:
        """Render as agents do: with new instructions between a question and its answer."""
        roles = ("system", "user", role, "assistant", "user")
        texts = ["x"] * len(roles)
        texts[2] = PROBE
        talk = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        messages = convert_messages(talk, in_parts=self.content_in_parts)
        try:
            return PROBE in self.render(messages, None, tokens, add_generation_prompt=True)
        except ValueError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        namespace = {
            **self._globals,
            "documents": None,
            **variables,
            "messages": messages,
            "tools": None if tools is None else list(map(dict, tools)),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            context = self._template.new_context(namespace, shared=True)
            return "".join(self._template.root_render_func(context))
        except REFUSALS as error:
            raise ValueError(str(error)) from error

    def render_open(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Render up to the end of the last message's content, which the model is to continue."""
        marked_messages = [*messages[:-1], _mark_end(messages[-1])]
        text = self.render(marked_messages, tools, variables, add_generation_prompt=False)
        position = text.rfind(TAG.strip())
        if position < 0:
            raise ValueError("the template leaves out the final message, so it cannot be continued")
        keeps_spaces = text[position : position + len(TAG)] == TAG
        return text[:position] if keeps_spaces else text[:position].rstrip()


def _find_variables(tree: nodes.Template, is_suspect: bool) -> frozenset[str]:
    """Return the names that a request may set; for a suspect template, all names that it reads."""
    if not is_suspect:
        return frozenset(meta.find_undeclared_variables(tree))
    return frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")


def _create_environment() -> TemplateEnvironment:
    environment = TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON. This replaces Jinja's own filter, which escapes HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _iterates_content(tree: nodes.Template) -> bool:
    """Return True if a loop iterates over a message's content, including loops inside macros."""
    macro_loops = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in _find_loops(macro)}
    if any(
        _is_content(loop.iter)
        or (_is_named(loop.iter, {"content"}) and id(loop) not in macro_loops)
        for loop in _find_loops(tree)
    ):
        return True
    return any(
        _is_named(loop.iter, _find_content_parameters(macro, tree))
        for macro in tree.find_all(nodes.Macro)
        for loop in _find_loops(macro)
    )


def _find_loops(node: nodes.Node) -> list[nodes.For]:
    return list(node.find_all(nodes.For))


def _find_content_parameters(macro: nodes.Macro, tree: nodes.Template) -> set[str]:
    """Return the parameters of ``macro`` that receive a message's content."""
    names: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if _is_named(call.node, {macro.name}):
            pairs = zip(macro.args, call.args, strict=False)
            names |= {parameter.name for parameter, argument in pairs if _is_content(argument)}
            names |= {argument.key for argument in call.kwargs if _is_content(argument.value)}
    return names


def _is_content(node: nodes.Node | None) -> bool:
    """Return True for ``message.content`` or ``message['content']``, even filtered or sliced."""
    match node:
        case nodes.Filter() | nodes.Test() | nodes.Getitem(arg=nodes.Slice()):
            return _is_content(node.node)
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _is_named(node: nodes.Node | None, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names


def _mark_end(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + TAG}
    texts = [index for index, part in enumerate(content or ()) if "text" in part]
    if not texts:
        raise ValueError("the final message has no text to continue")
    parts = [dict(part) for part in content or ()]
    parts[texts[-1]]["text"] += TAG
    return {**message, "content": parts}


def read_template(template: str) -> str:
    """Read a template from a file. Text with line breaks or braces is the template itself."""
    if any(mark in template for mark in "{}\n"):
        return template
    return Path(template).read_text(encoding="utf-8")
