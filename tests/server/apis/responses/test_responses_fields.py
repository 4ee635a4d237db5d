"""Fields of `vllm serve` on the Responses API, and what is left out aloud."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from eaglegate.server.access.notices import HEADER
from eaglegate.server.apis.responses.request import ResponsesRequest
from tests.server.apis.responses.test_responses import WEATHER, plain, said

DOCS = (Path(__file__).parents[4] / "docs" / "api.md").read_text("utf-8")
IGNORED = {
    "ec_transfer_params",
    "enable_response_messages",
    "media_io_kwargs",
    "mm_payload",
    "mm_processor_kwargs",
    "return_mm_kwargs",
}
"""Fields that cannot change an answer in text: named in the header, as unknown ones are."""


def fields_of_vllm(module: str, name: str) -> set[str]:
    """The fields of a request model of the vLLM that is installed, read without importing it."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    source = (Path(found.origin).parent / module).read_text("utf-8")
    (model,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    targets = [node.target for node in model.body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_every_field_of_vllm_is_known_or_documented():
    theirs = fields_of_vllm("entrypoints/openai/responses/protocol.py", "ResponsesRequest")
    assert {"input", "ignore_eos", "cache_salt"} <= theirs
    ours = set(ResponsesRequest.model_fields) | set(ResponsesRequest.refused)
    assert theirs - ours == IGNORED
    assert theirs <= set(re.findall(r"[a-z_]+", DOCS))


async def test_the_engine_gets_the_sampling_of_vllm(lab):
    lab.says("yes")
    fields = {
        "min_tokens": 2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1.0},
        "stop_token_ids": [7],
        "ignore_eos": True,
        "cache_salt": "salt",
        "priority": 3,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 9,
        "vllm_xargs": {"num_speculative_tokens": 1},
    }
    answer = await lab.respond(**fields)
    assert answer.status == 200, answer.body
    assert HEADER not in answer.headers
    (request,) = lab.engine.requests
    sampling = request.sampling
    assert (sampling.min_tokens, sampling.ignore_eos) == (2, True)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.1, {5: 1.0})
    assert sampling.stop_token_ids == (7,)
    assert (request.cache_salt, request.priority, request.depth) == ("common:salt", 3, 1)


async def test_a_stop_string_ends_the_answer(lab):
    lab.says("one two three", [1])
    whole = (await lab.respond(stop="two")).json
    assert whole["output"][0]["content"][0]["text"] == "one "
    assert whole["status"] == "completed"
    kept = (await lab.respond(stop=["two"], include_stop_str_in_output=True)).json
    assert kept["output"][0]["content"][0]["text"] == "one two"
    events = said(await lab.respond(stop="two", stream=True))
    assert plain(events[-1]["response"]) == plain(whole)
    assert (await lab.respond(stop="")).json["error"]["param"] == "stop"


async def test_there_is_one_way_to_say_what_the_content_must_match(lab):
    text = {"format": {"type": "json_object"}}
    answer = await lab.respond(structured_outputs={"regex": "a"}, text=text)
    assert (answer.status, answer.json["error"]["param"]) == (400, "structured_outputs")


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_input_messages": [{"role": "user"}]},
        {"watermarking": True},
        {"prompt": {"id": "p"}},
        {"moderation": {"mode": "block"}},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_unsupported_fields_that_change_the_answer_are_refused_by_name(lab, fields):
    answer = await lab.respond(**fields)
    assert (answer.status, answer.json["error"]["param"]) == (400, next(iter(fields)))
    assert answer.json["error"]["code"] == "unsupported_parameter"


async def test_the_rest_is_left_out_aloud(lab):
    lab.says("yes")
    fields = {
        "enable_response_messages": True,
        "context_management": [{"type": "compaction", "compact_threshold": 100}],
        "include": ["web_search_call.action.sources", "something.new"],
        "max_tool_calls": 3,
        "client_metadata": {"session_id": "01a201c4", "x-codex-turn-metadata": "{}"},  # Codex
    }
    answer = await lab.respond(**fields)
    assert answer.status == 200
    assert set(answer.headers[HEADER].split(", ")) == {
        "context_management",
        "enable_response_messages",
        "include[something.new]",
    }


HOSTED = [
    {"type": "web_search", "external_web_access": False},
    {"type": "file_search", "vector_store_ids": ["vs"]},
    {"type": "mcp", "server_label": "a", "server_url": "https://mcp.example"},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "tool_search"},
]


async def test_hosted_tools_are_left_out_aloud(lab):
    lab.says("ok")
    answer = await lab.respond(tools=[WEATHER, *HOSTED])
    assert answer.status == 200
    assert answer.headers[HEADER].split(", ") == [f"tools[{tool['type']}]" for tool in HOSTED]
    (offered,) = lab.renderer.seen[-1]["tools"]
    assert offered["function"]["name"] == "get_weather"
    assert answer.json["tools"] == [WEATHER]
    alone = await lab.respond(tools=HOSTED, tool_choice="auto")
    assert alone.status == 200
    assert not lab.renderer.seen[-1]["tools"]


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([WEATHER, *HOSTED], {"type": "web_search"}),
        ([WEATHER], {"type": "mcp", "server_label": "a"}),
        (HOSTED, "required"),
        (
            HOSTED,
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        ),
        (
            [WEATHER, *HOSTED],
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        ),
    ],
)
async def test_unless_the_choice_demands_one(lab, tools, choice):
    answer = await lab.respond(tools=tools, tool_choice=choice)
    assert (answer.status, answer.json["error"]["param"]) == (400, "tool_choice")
    assert not lab.engine.requests


async def test_an_allowed_hosted_tool_beside_others_is_left_out(lab):
    lab.says("ok")
    allowed = [{"type": "function", "name": "get_weather"}, {"type": "web_search"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    answer = await lab.respond(tools=[WEATHER, *HOSTED], tool_choice=choice)
    assert answer.status == 200
    assert "tool_choice.tools[web_search]" in answer.headers[HEADER]


@pytest.mark.parametrize(
    "choice", [{"type": "function"}, {"type": "allowed_tools", "tools": []}, {"type": "custom"}]
)
async def test_a_malformed_choice_is_refused(lab, choice):
    answer = await lab.respond(tools=[WEATHER], tool_choice=choice)
    assert answer.status == 400
    assert answer.json["error"]["param"].startswith("tool_choice")


async def test_traces_of_hosted_tools_in_the_history_are_left_out_aloud(lab):
    lab.says("ok")
    items = [
        {"role": "user", "content": "hi"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "a", "tools": []},
        {"role": "user", "content": "go on"},
    ]
    answer = await lab.respond(input=items)
    assert answer.status == 200
    assert answer.headers[HEADER] == "input[web_search_call], input[mcp_list_tools]"
    assert [m["content"] for m in lab.renderer.seen[-1]["messages"]] == ["hi", "go on"]
    result = {"type": "computer_call_output", "call_id": "c", "output": {}}
    refused = await lab.respond(input=[*items, result])
    assert (refused.status, refused.json["error"]["param"]) == (400, "input[4]")
