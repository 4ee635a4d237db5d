"""Grammars: what they let through is what the parser of the same format reads back."""

from __future__ import annotations

import dataclasses
from functools import cache
from itertools import takewhile
from random import Random

import orjson
import pytest

from eaglegate.engine.scripted import steps
from eaglegate.engine.types import Constraint, Sampling
from eaglegate.server.errors import InvalidRequest
from eaglegate.server.generation.grammar import answer_constraint
from eaglegate.server.generation.job import Question, ToolPolicy
from eaglegate.text.events import FinishReason, Outcome, Phase
from eaglegate.text.parsing.answer import make_parser
from eaglegate.text.parsing.fold import fold
from eaglegate.text.parsing.message import NO_REASONING
from eaglegate.text.parsing.registry import THINK, find_frame, framed_names
from eaglegate.text.parsing.vocabulary import Vocabulary

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
)
REQUIRED = ToolPolicy(TOOLS, "required")
FORMATS = framed_names()
CALL = '{"city": "Oslo", "days": 3}'
DSML = "｜DSML｜"
XML = {
    "qwen_xml": "<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>",
    "glm_xml": (
        "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>"
    ),
    "minimax_xml": (
        '<parameter name="city">Oslo</parameter>\n<parameter name="days">3</parameter>\n'
    ),
    "deepseek_xml": (
        f'<{DSML}parameter name="city" string="true">Oslo</{DSML}parameter>\n'
        f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n'
    ),
}


def job(**fields) -> Question:
    return Question((), Sampling(1), **fields)


@cache
def compiler(renderer_type):
    xgrammar = pytest.importorskip("xgrammar")
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=renderer_type().tokenizer)
    info = xgrammar.TokenizerInfo.from_huggingface(fast, vocab_size=2048, stop_token_ids=[3])
    return xgrammar.GrammarCompiler(info)


def accepts(lab, wanted: Constraint | None, text: str) -> bool:
    """Whether the grammar lets ``text`` and then the end through."""
    assert wanted is not None
    xgrammar = pytest.importorskip("xgrammar")
    grammar = compiler(type(lab.renderer)).compile_structural_tag(wanted.value)
    matcher = xgrammar.GrammarMatcher(grammar)
    ids = [*lab.renderer.encode(text, False), 3]
    return all(matcher.accept_token(token) for token in ids)


def call_text(name: str, tool: str, arguments: str) -> str:
    """A call as its frame writes it."""
    frame = find_frame(name)
    middle = "".join(
        part.get("value", "0") if part["type"] == "const_string" else "0"
        for part in frame.before_arguments
    )
    written = XML.get(frame.style, arguments)
    return frame.begin.replace("NAME", tool) + middle + written + frame.end


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_the_parser_reads_calls_that_the_grammar_accepts(lab, name):
    frame = find_frame(name)
    call = call_text(name, "get_weather", CALL)
    text = frame.section[0] + call + frame.separator + call + frame.section[1]
    wanted = answer_constraint(job(tool_policy=REQUIRED), Phase.CONTENT, THINK, name)
    assert accepts(lab, wanted, text)
    assert accepts(lab, wanted, f"<think>\nhm\n</think>\n\n{text}")
    vocabulary = Vocabulary.from_tokenizers(lab.renderer.tokenizer)
    parser = make_parser(vocabulary, tool_parser=name, tools=TOOLS)
    events = parser.feed(lab.renderer.encode(text, False)) + parser.flush(FinishReason.STOP)
    calls = fold(events).calls
    assert [c.name for c in calls] == ["get_weather"] * 2
    assert all(orjson.loads(c.arguments) == {"city": "Oslo", "days": 3} for c in calls)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n in FORMATS if find_frame(n).style == "json"])
def test_the_grammar_rejects_text_that_is_no_call(lab, name):
    frame = find_frame(name)
    wanted = answer_constraint(job(tool_policy=REQUIRED), Phase.CONTENT, THINK, name)

    def whole(*calls: str) -> str:
        return frame.section[0] + frame.separator.join(calls) + frame.section[1]

    assert not accepts(lab, wanted, "It rains.")
    assert not accepts(lab, wanted, whole(call_text(name, "nobody", CALL)))
    assert not accepts(lab, wanted, whole(call_text(name, "get_weather", '{"city": 1}')))
    one = dataclasses.replace(REQUIRED, parallel=False)
    single = answer_constraint(job(tool_policy=one), Phase.CONTENT, THINK, name)
    call = call_text(name, "get_weather", CALL)
    assert accepts(lab, single, whole(call))
    assert not accepts(lab, single, whole(call, call))


WALKED = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["on", "off"]},
        "level": {"$ref": "#/$defs/level"},
        "code": {"type": "string", "pattern": "^[a-z]{3}$"},
        "count": {"type": "integer"},
        "text": {"type": "string"},
        "spot": {"type": "object", "properties": {"at": {"const": "here"}}, "required": ["at"]},
    },
    "required": ["mode", "count"],
    "additionalProperties": False,
    "$defs": {"level": {"anyOf": [{"const": "low"}, {"type": "null"}]}},
}
NUM_WALKS = 3
FREE = 1000
"""Number of allowed tokens above which the walk is inside free text."""


def walk(lab, wanted: Constraint, closers: list[str], random: Random) -> list[int]:
    """Random tokens that the grammar lets through, up to its end."""
    xgrammar = pytest.importorskip("xgrammar")
    matcher = xgrammar.GrammarMatcher(
        compiler(type(lab.renderer)).compile_structural_tag(wanted.value)
    )
    bitmask = xgrammar.allocate_token_bitmask(1, 2048)
    ids: list[int] = []
    for _ in range(2000):
        matcher.fill_next_token_bitmask(bitmask)
        words = bitmask[0].numpy().view("uint32")
        allowed = [token for token in range(2048) if words[token >> 5] >> (token & 31) & 1]
        if allowed == [3]:
            return ids
        if len(allowed) > FREE and random.random() < 0.3:
            closer = lab.renderer.encode(random.choice(closers), False)
            taken = list(takewhile(matcher.accept_token, closer))
            ids += taken
            continue
        token = random.choice(allowed)
        if token == 3:
            return ids
        assert matcher.accept_token(token)
        ids.append(token)
    raise AssertionError("the walk has no end")


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_calls_that_the_grammar_lets_through_are_valid(lab, name):
    function = {"name": "set", "parameters": WALKED}
    tools = ({"type": "function", "function": function},)
    policy = ToolPolicy(tools, "required", parallel=False)
    wanted = answer_constraint(job(tool_policy=policy), Phase.CONTENT, NO_REASONING, name)
    vocabulary = Vocabulary.from_tokenizers(lab.renderer.tokenizer)
    end = {"qwen_xml": "</parameter>", "minimax_xml": "</parameter>", "glm_xml": "</arg_value>"}
    end |= {"deepseek_xml": f"</{DSML}parameter>", "json": '"'}
    for seed in range(NUM_WALKS):
        ids = walk(lab, wanted, [end[find_frame(name).style], '"'], Random(seed))
        parser = make_parser(
            vocabulary, tool_parser=name, tools=tools, is_sound=True, may_spell=True
        )
        (call,) = fold(parser.feed(ids) + parser.flush(FinishReason.STOP)).calls
        assert call.outcome is Outcome.VALID, lab.renderer.decode(ids)


def test_strict_tools_leave_the_text_free(lab):
    strict = {"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}
    policy = ToolPolicy((strict, TOOLS[1]), "auto")
    wanted = answer_constraint(job(tool_policy=policy), Phase.CONTENT, THINK, "hermes")
    assert accepts(lab, wanted, "It rains.")
    assert accepts(lab, wanted, "Let me see." + call_text("hermes", "get_weather", CALL))
    assert accepts(lab, wanted, call_text("hermes", "get_time", '{"a": 1}'))
    assert not accepts(lab, wanted, call_text("hermes", "get_weather", "{}"))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Constraint("json_schema", orjson.dumps(CITY).decode()), CALL, "{}"),
        (Constraint("json_object"), '{"a": [1]}', "[1]"),
        (Constraint("regex", "[0-9]{3}"), "123", "12"),
        (Constraint("choice", choices=("yes", "no")), "no", "maybe"),
        (Constraint("grammar", 'root ::= "a" | "b"'), "b", "c"),
    ],
)
def test_reasoning_is_free_and_content_is_not(lab, kind, good, bad):
    wanted = answer_constraint(job(constraint=kind), Phase.CONTENT, THINK, None)
    assert accepts(lab, wanted, good)
    assert accepts(lab, wanted, f"<think>\nfree {bad}\n</think>\n\n{good}")
    assert not accepts(lab, wanted, bad)
    assert not accepts(lab, wanted, f"<think>\nhm\n</think>\n\n{bad}")
    opened = answer_constraint(job(constraint=kind), Phase.REASONING, THINK, None)
    assert accepts(lab, opened, f"free {bad}\n</think>\n\n{good}")
    assert not accepts(lab, opened, good)


def test_a_reasoning_that_the_prompt_has_closed_is_not_opened_again(lab):
    both = job(constraint=Constraint("json_object"), tool_policy=ToolPolicy(TOOLS, "auto"))
    for asked in (job(constraint=Constraint("json_object")), both):
        wanted = answer_constraint(asked, Phase.CONTENT, THINK, "hermes", reasoned=True)
        assert accepts(lab, wanted, '{"a": 1}')
        assert not accepts(lab, wanted, '<think>\nhm\n</think>\n\n{"a": 1}')


def test_content_or_calls_where_both_are_wanted(lab):
    both = job(constraint=Constraint("regex", "[0-9]+"), tool_policy=ToolPolicy(TOOLS, "auto"))
    wanted = answer_constraint(both, Phase.CONTENT, THINK, "hermes")
    assert accepts(lab, wanted, "12")
    assert accepts(lab, wanted, call_text("hermes", "get_weather", CALL))
    assert not accepts(lab, wanted, "twelve")


def test_white_space_in_json_is_bounded(lab):
    wanted = answer_constraint(
        job(constraint=Constraint("json_object")), Phase.CONTENT, THINK, None
    )
    assert accepts(lab, wanted, '{\n    "a": 1\n}')
    assert not accepts(lab, wanted, '{"a":' + "\n" * 40 + "1}")


def test_on_channels_the_engine_waits_for_the_content(lab):
    from eaglegate.text.parsing.registry import reasoning_format

    harmony = reasoning_format("openai_gptoss")
    asked = job(constraint=Constraint("json_object"))
    wanted = answer_constraint(asked, Phase.CONTENT, harmony, "openai")
    assert wanted == Constraint("json_object", after_reasoning=True)
    with pytest.raises(InvalidRequest, match="cannot force calls"):
        answer_constraint(job(tool_policy=REQUIRED), Phase.CONTENT, harmony, "openai")


async def test_a_forced_call_may_spell_its_markers(lab):
    """A grammar knows the text alone: the model may write a marker with ordinary tokens."""
    pieces = ["<thi", "nk>\nhm\n</", "think>\n\n<tool", "_call>\n", '{"name": "run", "arguments"']
    pieces += [': {"x": "a</tool', '_call>"}}\n</tool', "_call>", "<|im_end|>"]
    ids = [token for piece in pieces for token in lab.renderer.encode(piece, False)]
    tool = {"type": "function", "function": {"name": "run"}}
    lab.engine.script = steps(ids, list(range(1, len(ids))))
    message = (await lab.chat(tools=[tool], tool_choice="required")).json["choices"][0]["message"]
    (called,) = message["tool_calls"]
    assert orjson.loads(called["function"]["arguments"]) == {"x": "a</tool_call>"}
    assert (message["reasoning"], message["content"]) == ("hm", None)
    free = (await lab.chat(tools=[tool])).json["choices"][0]["message"]
    assert "tool_calls" not in free
    assert "<tool_call>" in free["content"]


SUM = """
start: number (" + " number)*
number: DIGIT+ | "(" start ")"
%import common.DIGIT
"""


@pytest.mark.parametrize("field", ["structured_outputs", "guided_grammar"])
@pytest.mark.parametrize("grammar", [SUM, f"%llguidance {{}}\n{SUM}"])
async def test_a_grammar_may_be_lark(lab, field, grammar):
    """Lark grammars are accepted in vLLM's fields; reasoning stays free."""
    lab.says("1 + 2")
    fields = {field: grammar if field == "guided_grammar" else {"grammar": grammar}}
    answer = await lab.chat(**fields)
    assert answer.status == 200, answer.json
    wanted = lab.engine.requests[-1].constraint
    assert accepts(lab, wanted, "1 + (2 + 34)")
    assert accepts(lab, wanted, "<think>\nhm\n</think>\n\n1")
    assert not accepts(lab, wanted, "1 + x")


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start: missing", "no rule 'missing'"),
        ("not a grammar at all", "not a valid Lark grammar at line 1"),
        ("start: /" + "a" * 20_000 + "/", "the limit is 16384"),
    ],
)
async def test_a_grammar_that_is_none_is_refused_with_the_place(lab, grammar, words):
    answer = await lab.chat(structured_outputs={"grammar": grammar})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "structured_outputs.grammar"
    assert words in answer.json["error"]["message"]
