"""Every request field of the vLLM that is installed: taken, or listed in docs/api.md with why not.

The names are read from vLLM's own models, so that a field of a new version cannot be forgotten: one
without an ordinary value here fails, and so does one that is answered other than listed.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from eaglegate.engine.types import RepetitionStop
from eaglegate.server.access.notices import HEADER
from eaglegate.server.apis.chat.request import ChatRequest
from eaglegate.server.apis.completions.to_job import CompletionRequest
from eaglegate.server.apis.messages.request import CountTokensRequest, MessagesRequest
from eaglegate.server.apis.operations.info import DetokenizeRequest, TokenizeRequest
from tests.server.apis.responses.test_responses_fields import DOCS, fields_of_vllm

pytestmark = pytest.mark.thorough

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MODELS = {
    "chat": ("entrypoints/openai/chat_completion/protocol.py", "ChatCompletionRequest"),
    "completions": ("entrypoints/openai/completion/protocol.py", "CompletionRequest"),
    "messages": ("entrypoints/anthropic/protocol.py", "AnthropicMessagesRequest"),
    "count": ("entrypoints/anthropic/protocol.py", "AnthropicCountTokensRequest"),
    "tokenize": ("entrypoints/serve/tokenize/protocol.py", "TokenizeCompletionRequest"),
    "tokenize chat": ("entrypoints/serve/tokenize/protocol.py", "TokenizeChatRequest"),
    "detokenize": ("entrypoints/serve/tokenize/protocol.py", "DetokenizeRequest"),
}
OURS = {
    "chat": ("/v1/chat/completions", ChatRequest, {"messages": USER}),
    "completions": ("/v1/completions", CompletionRequest, {"prompt": "hi"}),
    "messages": ("/v1/messages", MessagesRequest, {"messages": USER, "max_tokens": 9}),
    "count": ("/v1/messages/count_tokens", CountTokensRequest, {"messages": USER}),
    "tokenize": ("/tokenize", TokenizeRequest, {"prompt": "hi"}),
    "tokenize chat": ("/tokenize", TokenizeRequest, {"messages": USER}),
    "detokenize": ("/detokenize", DetokenizeRequest, {"tokens": [1]}),
}
VALUES: dict[str, list[Any]] = {
    "add_generation_prompt": [True, False],
    "add_special_tokens": [False],
    "allowed_token_ids": [[1, 2, 3]],
    "bad_words": [["no"], []],
    "cache_salt": ["s" * 43],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "continue_final_message": [False],
    "documents": [[{"title": "a", "text": "b"}]],
    "ec_transfer_params": [{"a": 1}],
    "frequency_penalty": [0.5, 0, "0.5"],
    "ignore_eos": [True],
    "include_reasoning": [False, True],
    "include_stop_str_in_output": [True],
    "kv_transfer_params": [{"do_remote_decode": False}, {"lmcache.skip_save": True}],
    "length_penalty": [1.0],
    "logit_bias": [{"5": 1.5}, {}],
    "max_completion_tokens": [5, 100_000],
    "max_tokens": [5, 100_000],
    "media_io_kwargs": [{"image": {"a": 1}}],
    "messages": [
        [*USER, {"role": "assistant", "content": "a"}, *USER],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "system", "content": "a"}, *USER],
    ],
    "min_p": [0.1],
    "min_tokens": [0, 3],
    "mm_payload": ["none"],
    "mm_processor_kwargs": [{"a": 1}],
    "model": ["demo", None],
    "n": [1, 2],
    "parallel_tool_calls": [True, False],
    "presence_penalty": [0.5],
    "priority": [0, 1],
    "repetition_detection": [{"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 3}],
    "repetition_penalty": [1.1],
    "request_id": ["r1"],
    "return_mm_kwargs": [False],
    "return_prompt_text": [True],
    "return_token_ids": [True],
    "return_token_offsets": [False, True],
    "return_token_strs": [True],
    "routed_experts_prompt_start": [0],
    "seed": [0, -1, 7],
    "session_id": ["s1"],
    "skip_special_tokens": [True, False],
    "spaces_between_special_tokens": [True, False],
    "stop": ["a", ["a", "b"], [], None],
    "stop_sequences": [["a"], []],
    "stop_token_ids": [[1], []],
    "stream": [True, False],
    "stream_interval": [4],
    "structured_outputs": [{"regex": "[ab]"}, {"choice": ["a"]}, {"json": {"type": "object"}}],
    "system": ["a", [{"type": "text", "text": "a"}]],
    "temperature": [0, 0.7, "0.7"],
    "thinking_token_budget": [5, -1],
    "tokens": [[1, 2]],
    "top_k": [0, -1, 5],
    "top_p": [0.9, 1],
    "truncate_prompt_tokens": [5, -1],
    "truncation_side": ["left", "right"],
    "use_beam_search": [False],
    "user": ["u"],
    "vllm_xargs": [{"num_speculative_tokens": 1}, {"other": [1, "a"]}],
    "watermarking": [False],
    "metadata": [{"user_id": "u"}],
    "output_config": [{"effort": "low"}],
    "prompt": ["hi", [1, 2], ["a", "b"], [[1], [2, 3]]],
    "reasoning_effort": ["none", "low", "high", "max"],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}},
    ],
    "thinking": [
        {"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"},
    ],
}  # fmt: skip
"""Values that clients send, by the field's name."""
TOGETHER: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("completions", "echo"): [{"echo": True}, {"echo": True, "max_tokens": 0, "logprobs": 1}],
    ("completions", "logprobs"): [{"logprobs": 1}],
    ("completions", "prompt_logprobs"): [{"prompt_logprobs": 1}],
    ("completions", "return_tokens_as_token_ids"): [{"return_tokens_as_token_ids": True}],
    ("chat", "logprobs"): [{"logprobs": True}],
    ("chat", "top_logprobs"): [{"top_logprobs": 0}, {"logprobs": True, "top_logprobs": 2}],
    ("chat", "prompt_logprobs"): [{"prompt_logprobs": 1}],
    ("chat", "return_tokens_as_token_ids"): [{"return_tokens_as_token_ids": True}],
    ("chat", "echo"): [{"echo": False}],
    ("chat", "tools"): [{"tools": [TOOL]}, {"tools": [TOOL | {"defer_loading": True}]}],
    ("chat", "tool_choice"): [
        {"tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
    ("tokenize", "prompt"): [{"prompt": "hi"}],
    ("tokenize chat", "tools"): [{"tools": [TOOL]}],
    ("messages", "tools"): [{"tools": [{"name": "f", "input_schema": {}, "strict": None}]}],
    ("messages", "tool_choice"): [
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}
    ],
    ("chat", "stream_options"): [
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    ],
}
TOGETHER |= {("count", name): TOGETHER["messages", name] for name in ("tools", "tool_choice")} | {
    ("completions", "stream_options"): TOGETHER["chat", "stream_options"]
}
REFUSED: dict[str, list[Any]] = {
    "add_special_tokens": [True],
    "chat_template": ["{{ messages }}"],
    "echo": [True],
    "kv_transfer_params": [{"do_remote_decode": True}, {"do_remote_prefill": True}, [1]],
    "logprob_token_ids": [[1]],
    "prompt_embeds": ["AAAA"],
    "suffix": ["x"],
    "use_beam_search": [True],
    "watermarking": [True],
}
"""Values that docs/api.md lists as refused; a neutral value of the field is taken."""
WORK_ELSEWHERE = {("completions", "add_special_tokens"), ("completions", "echo"),
                  ("tokenize", "add_special_tokens")}  # fmt: skip


def fields(api: str) -> set[str]:
    return {name for name in fields_of_vllm(*MODELS[api]) if not name.startswith("_")}


def bodies(api: str, name: str) -> list[dict[str, Any]]:
    return TOGETHER.get((api, name)) or [{name: value} for value in VALUES.get(name, [])]


@pytest.mark.parametrize("api", MODELS)
async def test_ordinary_values_are_taken(lab, api):
    """Alone, each; null as well, as serialisers write it for what is not set."""
    url, _, body = OURS[api]
    ids = lab.says_with_logprobs("a b")
    wrong = []
    for name in sorted(fields(api)):
        given = bodies(api, name)
        if not given and name not in REFUSED:
            wrong.append((name, "has no ordinary value in this test"))
        neutral = [] if name in body else [{name: None}]
        for more in (*given, *neutral):
            answer = await lab.post(url, {"model": "demo"} | body | more)
            if answer.status != 200:
                wrong.append((more, answer.body[:300]))
    assert not wrong
    assert ids


@pytest.mark.parametrize("api", MODELS)
async def test_the_rest_is_refused_by_name_and_listed(lab, api):
    url, _, body = OURS[api]
    for name in sorted(fields(api) & REFUSED.keys()):
        if (api, name) in WORK_ELSEWHERE:
            continue
        for value in REFUSED[name]:
            answer = await lab.post(url, {"model": "demo"} | body | {name: value})
            assert answer.status == 400, name
            assert name in answer.json["error"]["message"]
        assert f"`{name}`" in DOCS


@pytest.mark.parametrize("api", MODELS)
async def test_ignored_fields_are_listed_in_the_header_and_documented(lab, api):
    url, ours, body = OURS[api]
    lab.says("x")
    for name in sorted(fields(api) - set(ours.model_fields) - set(ours.refused)):
        value = VALUES[name][0]
        answer = await lab.post(url, {"model": "demo"} | body | {name: value})
        assert answer.headers[HEADER] == name
        assert name in set(re.findall(r"[a-z_]+", DOCS))


async def test_repetition_is_the_engine_s_to_find(lab):
    lab.says("x")
    asked = {"max_pattern_size": 3, "min_count": 4}
    await lab.chat(repetition_detection=asked)
    assert lab.engine.requests[-1].sampling.repetition == RepetitionStop(3, 1, 4)
    answer = await lab.chat(repetition_detection=asked | {"min_pattern_size": 9})
    assert (answer.status, answer.json["error"]["param"]) == (400, "repetition_detection")


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, 7),
        ({"thinking": {"type": "disabled", "budget_tokens": 7}}, None),
        ({"reasoning": {"max_tokens": 8}}, 8),
        ({"thinking_budget": 9}, 9),
        ({"thinking_budget": 9, "thinking_token_budget": 3}, 3),
    ],
)
async def test_budgets_of_reasoning_by_other_names(lab, fields, budget):
    lab.says("x")
    for known in (True, None):
        lab.change_model(thinking_budget=known)
        assert (await lab.chat(**fields)).status == 200
        expected = budget if known else fields.get("thinking_token_budget")
        assert lab.engine.requests[-1].sampling.thinking_token_budget == expected
