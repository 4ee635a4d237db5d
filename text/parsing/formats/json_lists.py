"""JSON calls, one or a list, after a marker: Hermes, Granite, Jamba, Mistral, Llama 3 and others.

    <tool_call>                                                       Hermes, Qwen 2.5 and Qwen 3,
    {"name": "get_weather", "arguments": {"city": "Paris"}}                 ERNIE 4.5, Granite 4.0
    </tool_call>
    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]   Granite 3.0, 3.2, 3.3
    <tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]               Granite 3.1
    <tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_calls>    Jamba,
                                                                              Hunyuan A13B
    <|action_start|><|plugin|>{"name": "get_weather", "parameters": {}}<|action_end|>     InternLM
    functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]                    Phi-4-mini
    <function_call> {"name": "get_weather", "arguments": {"city": "Paris"}}    Granite 20B functions
    <|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>                  Apertus
    <|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}             GigaChat 3
    <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather",                    Command
                      "parameters": {"city": "Paris"}}]<|END_ACTION|>
    [{"name": "get_weather", "arguments": {"city": "Paris"}}]                                 xLAM

Sources: the chat templates of ai21labs/AI21-Jamba-1.5-Mini, tencent/Hunyuan-A13B-Instruct,
internlm/internlm2_5-7b-chat, microsoft/Phi-4-mini-instruct, swiss-ai/Apertus-8B-Instruct-2509,
ibm-granite/granite-20b-functioncalling and CohereLabs/c4ai-command-a-03-2025, and the parsers that
vllm-project/vllm has for them (for ai-sage/GigaChat3 only these).

- Command writes its answer between tokens of its own, which are structure. Its call ids are numbers
  that repeat in each turn, so they are not passed on.
- NousResearch/Hermes-2-Pro and Qwen/Qwen3 put a line break around the JSON, and before each
  ``<tool_call>`` that follows content or another call. These line breaks are framing. Qwen has both
  markers as added tokens. If a tokenizer lacks them, the marker is plain text: it opens a call only
  if a brace follows, and closes a call only outside a JSON string.
- LongCat-Flash (meituan-longcat/LongCat-Flash-Chat) writes the same between markers of its own.
- In Granite (ibm-granite/granite-3.0-8b-instruct and later) ``<|tool_call|>`` is a special token,
  and ``<tool_call>`` plain text. The end of the list ends the calls, and content follows.
- GigaChat ends its content with a token. Older checkpoints announce a call by the words "function
  call" and a token.
- xLAM (Salesforce/Llama-xLAM-2-8b-fc-r and xLAM-2-3b-fc-r) writes a bare list. Older models put it
  into a fence, or after ``[TOOL_CALLS]`` or ``<tool_call>``. A bare or fenced list contains calls
  only if its first object names an offered tool.

The whole message is the call in Llama 3.1, 3.2, 3.3 and 4.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Source: meta-llama/llama-models prompt formats and the chat template of Llama-3.1 (vllm-project/vllm
keeps a copy, examples/tool_chat_template_llama3.1_json.jinja). Several calls are separated by
``; ``, and a ``<|python_tag|>`` token may precede them. There is no other marker. Therefore an
object is a call only at the beginning of the content or after a call, and only if it has a name,
parameters (or arguments) and no other key. Any other object is content, which is passed on as soon
as another key shows it. Code after ``<|python_tag|>`` is content as well. Llama 4's templates write
content before a call, so there an object that names an offered tool is a call anywhere.

Mistral writes such a list or, since tokenizer v11, a name and ``[ARGS]``.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]      before v11
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]...               from v11
    [TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Paris"}            v11 with an id

Source: mistral-common (mistral_common/tokens/tokenizers/instruct.py: V2, V3, V7, V11, V13), where
all three markers are control tokens. The text after ``[TOOL_CALLS]`` distinguishes the variants,
so one routine reads all of them. In a v11 call without ``[ARGS]`` the arguments begin at the first
brace. Ids have nine letters or digits, because the templates refuse other ids in the next prompt.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from eaglegate.text.parsing.json_blocks import OBJECT, JsonBlock
from eaglegate.text.parsing.json_calls import JsonCalls
from eaglegate.text.parsing.markers import FRAGMENT, JSON, NAME, Follow, Quotes
from eaglegate.text.parsing.message import (
    Ahead,
    CallFrame,
    ParsingContext,
    ReasoningFormat,
    ToolFormat,
    doubt_cut_call,
    last_name,
    opens,
)
from eaglegate.text.parsing.reader import DONE, JsonValue, Next, Routine, Subroutine, Until

if TYPE_CHECKING:
    from eaglegate.text.parsing.tags import Tags


def _load_coder() -> Tags:
    """The tags of Qwen3-Coder, loaded with the first answer that is written in them."""
    from eaglegate.text.parsing.formats.xml_calls import CODER

    return CODER


COHERE_TEXT = (
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
)

APERTUS = JsonBlock("<|tools_prefix|>", "<|tools_suffix|>", is_keyed=True).format()
COHERE = JsonBlock(
    "<|START_ACTION|>", "<|END_ACTION|>", COHERE_TEXT, names=("tool_name", "name")
).format()
COHERE_REASONING = ReasoningFormat(
    ("<|START_THINKING|>",),
    ("<|END_THINKING|>",),
    framing=" \n",
    inner=COHERE_TEXT,
    forgets_end=True,
)
"""Command A: the tokens around the text of the answer are structure."""
HERMES = JsonBlock("<tool_call>", "</tool_call>", load_tags=_load_coder).format()
LONGCAT = JsonBlock("<longcat_tool_call>", "</longcat_tool_call>").format()
GRANITE = JsonBlock("<|tool_call|>", aliases=("<tool_call>",)).format()
GIGACHAT3 = replace(
    JsonBlock(
        "<|function_call|>", others=("<|message_sep|>",), aliases=("function call<|role_sep|>",)
    ).format(),
    fragment="<|role_sep|>",
    fragmented=JsonBlock(
        "<|function_call|>", others=("<|message_sep|>",), aliases=(f"function call{FRAGMENT}",)
    ).format(),
)
GRANITE_20B = JsonBlock("<function_call>").format()
INTERNLM = JsonBlock("<|action_start|>", "<|action_end|>", ("<|plugin|>",)).format()
JAMBA = JsonBlock("<tool_calls>", "</tool_calls>").format()
NEMOTRON = JsonBlock("<TOOLCALL>", "</TOOLCALL>").format()
"""nvidia/NVIDIA-Nemotron-Nano-9B-v2."""
PHI4 = JsonBlock("functools", begins=OBJECT).format()

_LIST, _FENCE = "[", "```json"
_MARKED = {
    "<tool_call>": JsonBlock("<tool_call>", "</tool_call>"),
    "[TOOL_CALLS]": JsonBlock("[TOOL_CALLS]"),
}


def _read_xlam(opener: str, context: ParsingContext) -> Routine:
    if opener in _MARKED:
        yield from _MARKED[opener].calls(opener, context)
        return
    names = context.calls.names or (NAME,)
    quoted_names: Follow = {name: {'"': {",": None}} for name in names}
    first: Follow = {"{": {'"name"': {":": {'"': quoted_names}}}}
    any_head: Follow = {**first, "TOOL_CALLS]": {"[": first}}
    head: Follow = {"[": first} if opener == _FENCE else any_head
    if not (yield from opens(opener, head, context)):
        return
    delimiters = context.lexicon.delimiters("```", *_MARKED)
    quotes = context.quotes(dict.fromkeys(_MARKED, OBJECT))
    content, prefix = context.out.content, [opener]
    calls = JsonCalls(context.calls, delimiters, content.write, closed=False, quotes=quotes)
    yield Until(context.lexicon.delimiters("{"), prefix.append)
    if (
        yield from calls.object(lambda text: content.unmark("".join([*prefix, "{", text])))
    ) == DONE:
        yield from calls.read()
    if opener == _FENCE:
        yield Next(delimiters, keep=None)


XLAM = ToolFormat((*_MARKED, _FENCE, _LIST), _read_xlam, ("</tool_call>",))


PYTHON = "<|python_tag|>"


def _read_llama(opener: str, context: ParsingContext) -> Routine:
    delimiters = context.lexicon.delimiters(PYTHON)
    content = context.out.content.write
    quotes = context.quotes({PYTHON: {'{"': None}})
    is_certain = opener == PYTHON
    yield from JsonCalls(
        context.calls, delimiters, content, is_certain, False, quotes=quotes
    ).read()


def _read_llama_anywhere(opener: str, context: ParsingContext) -> Routine:
    """Read Llama 4's objects, which may follow content if they call an offered tool."""
    if opener == PYTHON:
        yield from _read_llama(opener, context)
        return
    content = context.out.content
    if not content.written:
        content.unmark("")
    elif content.fence.is_open or content.fence.is_inline:
        content.unmark(opener)
        return
    elif not (yield from opens(opener, _llama_head(context), context)):
        return
    quotes = context.quotes({PYTHON: {'{"': None}})
    delimiters, num = context.lexicon.delimiters(PYTHON), context.calls.num

    def lose(text: str) -> None:
        (content.write if context.calls.num > num else content.unmark)(text)

    form = JsonCalls(context.calls, delimiters, lose, False, False, quotes=quotes)
    if (yield from form.object()) == DONE:
        yield from form.read()


def _llama_head(context: ParsingContext) -> Follow:
    arguments: Follow = {'"parameters"': {":": None}, '"arguments"': {":": None}}
    name_end: Follow = {'"': {",": arguments}}
    names = context.calls.names or (NAME,)
    quoted_names: Follow = dict.fromkeys(names, name_end)
    return {'"name"': {":": {'"': quoted_names}}}


def _fenced_head(context: ParsingContext) -> Follow:
    return {"{": _llama_head(context)} if context.calls.names else {}


LLAMA3 = ToolFormat((PYTHON,), _read_llama, leads=("{",), head=_fenced_head)
LLAMA4 = ToolFormat((PYTHON, "{"), _read_llama_anywhere, head=_fenced_head)


_MEMBER: Follow = {",": {'"': None}}
"""Text after the arguments that belongs inside them."""
_CALL, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_SIGNS = string.ascii_letters + string.digits


def _read_mistral(opener: str, context: ParsingContext) -> Routine:
    content = context.out.content.write
    quotes = context.remember_quotes(_CALL, lambda: _find_ends(context))
    marker = opener
    while marker == _CALL:
        yield from doubt_cut_call(context)
        marker = yield Next(context.lexicon.delimiters(_CALL, _ARGUMENTS, _CALL_ID), keep=None)
        if marker in ("[", "{"):
            delimiters = context.lexicon.delimiters(_CALL)
            marker = yield from JsonCalls(
                context.calls, delimiters, content, closed=False, quotes=quotes
            ).read()
        elif marker != _CALL:
            marker = yield from _read_named(marker, quotes, context)
            lexicon = context.lexicon
            if (
                marker == DONE
                and (yield Ahead(_MEMBER, lexicon.delimiters(), lexicon)) == Ahead.YES
            ):
                context.calls.doubt()


def _find_ends(context: ParsingContext) -> Mapping[str, Follow]:
    """Return the marker that ends an unclosed string: the next call, with nothing behind it but
    another.
    """
    arguments: Follow = {JSON: context.follow({NAME: None}, _CALL)}
    name_end = context.follow(None, _CALL_ID) | context.follow(arguments, _ARGUMENTS)
    name_end['{"'] = None
    return {_CALL: {"[": {'{"': None}, NAME: name_end}}


def _read_named(first: str, quotes: Quotes, context: ParsingContext) -> Subroutine:
    """Read a name, an optional id and the arguments. Return DONE after them."""
    name_parts: list[str] = []
    id_parts: list[str] = []
    ends = context.lexicon.delimiters(_ARGUMENTS, _CALL_ID, _CALL, "{")
    marker = first
    if first not in (_ARGUMENTS, _CALL_ID):
        marker = yield from last_name(ends, name_parts, context.calls.begin)
    if marker == _CALL_ID:
        marker = yield Until(ends, id_parts.append)
    if not "".join(name_parts).strip():
        return marker
    context.calls.begin("".join(name_parts).strip(), "".join(id_parts).strip() or None)
    marker = yield from _read_arguments(marker, quotes, context)
    context.calls.close(is_fragile=context.calls.is_bare)
    return marker


def _read_arguments(marker: str, quotes: Quotes, context: ParsingContext) -> Subroutine:
    delimiters = context.lexicon.delimiters(_CALL)
    value = JsonValue(delimiters, context.calls.write_json, quotes=quotes)
    if marker == "{":
        value.plain(marker)
        return (yield value)
    if marker == _ARGUMENTS:
        marker = yield Next(delimiters, keep=None)
    if marker == "{":
        return (yield value)
    return marker if marker == _CALL else (yield Until(delimiters, context.calls.write_json))


MISTRAL = ToolFormat(
    (_CALL,),
    _read_mistral,
    (_ARGUMENTS, _CALL_ID),
    framing="",
    new_id=lambda: "".join(secrets.choice(_ID_SIGNS) for _ in range(9)),
)

_HERMES_FRAME = CallFrame(
    '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", separator="\n"
)
_LLAMA_FRAME = CallFrame('{"name": "NAME", "parameters": ', "}", separator="; ")
_LIST_FRAME = CallFrame(
    '{"name": "NAME", "arguments": ',
    "}",
    section=("<tool_calls>[", "]</tool_calls>"),
    separator=", ",
)
FRAMES = {
    "ernie45": _HERMES_FRAME,
    "gigachat3": CallFrame('<|function_call|>{"name": "NAME", "arguments": ', "}", separator="\n"),
    "granite": CallFrame(
        '{"name": "NAME", "arguments": ', "}", section=("<|tool_call|>[", "]"), separator=", "
    ),
    "granite4": _HERMES_FRAME,
    "hermes": _HERMES_FRAME,
    "hunyuan_a13b": _LIST_FRAME,
    "jamba": _LIST_FRAME,
    "llama3_json": _LLAMA_FRAME,
    "llama4_json": _LLAMA_FRAME,
    "longcat": CallFrame(
        '<longcat_tool_call>\n{"name": "NAME", "arguments": ',
        "}\n</longcat_tool_call>",
        separator="\n",
    ),
    "mistral": CallFrame("[TOOL_CALLS]NAME[ARGS]", ""),
    "phi4_mini_json": CallFrame(
        '{"name": "NAME", "arguments": ', "}", section=("functools[", "]"), separator=", "
    ),
    "qwen3_json": _HERMES_FRAME,
}
