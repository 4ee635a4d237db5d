"""Custom tools with grammars: what the engine lets through is what the client gets."""

from __future__ import annotations

import json

import pytest

from eaglegate.server.generation.grammar import answer_constraint
from eaglegate.server.generation.job import ToolPolicy
from eaglegate.text.events import FinishReason, Phase
from eaglegate.text.grammars.lark_grammar import lark_grammar
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import fold
from eaglegate.text.parsing.message import CallFrame
from eaglegate.text.parsing.registry import THINK, find_frame
from eaglegate.text.parsing.tools import PARAMETERS
from eaglegate.text.parsing.vocabulary import Vocabulary
from tests.server.apis.shared.test_text_grammars import ADDED, PATCH
from tests.server.generation.test_structure import FORMATS, accepts, job

LARK = {"type": "grammar", "syntax": "lark", "definition": PATCH}
PATCHER = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": LARK}
OTHER = {"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": False}
CALL = json.dumps({"input": ADDED}, ensure_ascii=False)


def in_chat(tool: dict) -> dict:
    form = {key: value for key, value in tool["format"].items() if key != "type"}
    inner = {"name": tool["name"], "format": {"type": "grammar", "grammar": form}}
    return {"type": "custom", "custom": inner}


def policy(choice: str = "required") -> ToolPolicy:
    functions = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in (("apply_patch", PARAMETERS), ("ls", {"type": "object"}))
    ]
    return ToolPolicy(tuple(functions), choice, custom={"apply_patch": lark_grammar(PATCH)})


def call_text(frame: CallFrame, text: str) -> str:
    """The call as its frame writes it."""
    middle = "".join(str(part.get("value", "0")) for part in frame.before_arguments)
    inside = json.dumps(text, ensure_ascii=False)[1:-1] if frame.style == "json" else text
    whole = frame.begin.replace("NAME", "apply_patch") + middle
    return frame.section[0] + whole + inside.join(frame.text) + frame.end + frame.section[1]


@pytest.mark.thorough
@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_lets_a_match_through_and_reads_it_back(lab, name, choice):
    wanted = answer_constraint(job(tool_policy=policy(choice)), Phase.CONTENT, THINK, name)
    text = call_text(find_frame(name), ADDED)
    assert accepts(lab, wanted, text)
    assert not accepts(lab, wanted, call_text(find_frame(name), ADDED.replace("+print", "print")))
    vocabulary = Vocabulary.from_tokenizers(lab.renderer.tokenizer)
    parser = make_parser(
        vocabulary,
        tool_parser=name,
        tools=policy().tools,
        custom=frozenset(policy().custom),
        is_sound=True,
    )
    events = parser.feed(lab.renderer.encode(text, False)) + parser.flush(FinishReason.STOP)
    (call,) = fold(events).calls
    assert (call.name, call.arguments) == ("apply_patch", ADDED)


async def test_responses_constrain_the_input_of_a_call(lab):
    lab.says(f'<tool_call>\n{{"name": "apply_patch", "arguments": {CALL}}}\n</tool_call>', [5])
    body = (await lab.respond(tools=[PATCHER, OTHER])).json
    (call,) = body["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", ADDED)
    assert body["tools"][0] == PATCHER
    (request,) = lab.engine.requests
    hermes = find_frame("hermes")
    assert accepts(lab, request.constraint, "No call at all.")
    assert accepts(lab, request.constraint, call_text(hermes, ADDED))
    assert not accepts(lab, request.constraint, call_text(hermes, "rm -rf"))
    offered = lab.renderer.seen[-1]["tools"][0]["function"]
    assert offered == {"name": "apply_patch", "description": "Edits.", "parameters": PARAMETERS}


async def test_chat_and_namespaces_constrain_it_too(lab):
    lab.says("ok")
    assert (await lab.chat(tools=[in_chat(PATCHER)])).status == 200
    inside = {"type": "namespace", "name": "ed", "tools": [PATCHER]}
    assert (await lab.respond(tools=[inside])).status == 200
    plain, named = (request.constraint for request in lab.engine.requests)
    hermes = find_frame("hermes")
    assert not accepts(lab, plain, call_text(hermes, "rm -rf"))
    assert accepts(lab, named, call_text(hermes, ADDED).replace("apply_patch", "ed__apply_patch"))


async def test_a_regular_expression_will_do(lab):
    lab.says("ok")
    form = {"type": "grammar", "syntax": "regex", "definition": r'^"[a-z]+"$'}
    await lab.respond(tools=[PATCHER | {"format": form}])
    (request,) = lab.engine.requests
    assert accepts(lab, request.constraint, call_text(find_frame("hermes"), '"ab"'))
    assert not accepts(lab, request.constraint, call_text(find_frame("hermes"), "ab"))


async def test_without_a_grammar_a_call_is_as_free_as_before(lab):
    lab.says("ok")
    for form in ({"type": "text"}, None):
        await lab.respond(tools=[PATCHER | {"format": form}])
        assert lab.engine.requests[-1].constraint is None


@pytest.mark.parametrize(
    ("form", "where", "why"),
    [
        ({"syntax": "lark", "definition": "start: /(?=a)/"}, ".definition", "lookahead"),
        ({"syntax": "lark", "definition": 'start: "a'}, ".definition", "line 1"),
        ({"syntax": "regex", "definition": "("}, ".definition", "regular expression"),
        ({"syntax": "regex", "definition": "a" * 20000}, ".definition", "20000 characters"),
        ({"syntax": "lark"}, "", "needs a 'syntax'"),
        ({"definition": "x"}, "", "needs a 'syntax'"),
        ({"syntax": "gbnf", "definition": "x"}, ".syntax", "'lark' or 'regex'"),
    ],
)
async def test_a_bad_grammar_is_refused_by_its_place(lab, form, where, why):
    tool = PATCHER | {"format": {"type": "grammar", **form}}
    for answer, path in (
        (await lab.respond(tools=[OTHER, tool]), "tools[1].format"),
        (await lab.chat(tools=[in_chat(tool)]), "tools[0].custom.format.grammar"),
    ):
        error = answer.json["error"]
        assert (answer.status, error["param"]) == (400, path + where)
        assert why in error["message"]
    assert not lab.engine.requests


@pytest.mark.parametrize("parser", ["pythonic", "openai"])
async def test_a_format_without_a_frame_says_so(lab, parser):
    lab.tool_parser = parser
    lab.gateway.open(lab.path())
    answer = await lab.respond(tools=[PATCHER])
    assert answer.status == 400
    assert "a grammar" in answer.json["error"]["message"]
