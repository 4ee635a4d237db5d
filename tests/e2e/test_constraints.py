"""Constraints on the real engine: in Lark, and in pairs with extreme fields."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

pytestmark = pytest.mark.slow

CONSTRAINTS = {
    "none": {},
    "choice": {"guided_choice": ["yes"]},
    "regex": {"guided_regex": "[a-c]{3}"},
    "schema": {"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    "grammar": {"guided_grammar": 'root ::= "yes" | "no"'},
    "tool": {
        "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
            "type": "object", "properties": {}, "additionalProperties": False}}}],
        "tool_choice": "required",
    },
}  # fmt: skip
EXTREMES = (
    {"allowed_token_ids": [5]},
    {"allowed_token_ids": [5, 6], "n": 3},
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 1e-6},
    {"repetition_penalty": 1e6},
    {"temperature": 5e-324},
    {"temperature": 1, "top_p": 5e-324},
    {"temperature": 1, "min_p": 1},
    {"logit_bias": {str(token): -100 for token in range(1024)}},
    {"logit_bias": {"5": 100}},
    {"bad_words": ["yes", "no", "a", "b", "c", "aa", "bb", "cc", "{", "0"]},
    {"min_tokens": 20, "max_tokens": 20},
    {"ignore_eos": True},
    {"stop_token_ids": [5, 1 << 62]},
    {"seed": -(1 << 63)},
    {"top_k": 1 << 63},
    {"repetition_detection": {"max_pattern_size": 256, "min_count": 1 << 40}},
    {"thinking_token_budget": 1 << 62},
    {"prompt_logprobs": 20, "logprobs": True, "top_logprobs": 20},
    {"max_tokens": 1 << 62},
)


async def test_no_request_is_answered_with_a_failure(demo_gateway):
    failed = []
    turns = asyncio.Semaphore(4)

    async def ask(client: httpx.AsyncClient, constraint: str, fields: dict) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
        async with turns:
            answer = await client.post(
                "/v1/chat/completions", json=body | CONSTRAINTS[constraint] | fields, timeout=120
            )
        if answer.status_code not in (200, 400):
            failed.append((constraint, fields, answer.text))
        if answer.status_code == 400:
            assert answer.json()["error"]["param"], answer.text

    async with httpx.AsyncClient(base_url=demo_gateway.url) as client:
        async with asyncio.TaskGroup() as group:
            for constraint in CONSTRAINTS:
                for fields in EXTREMES:
                    group.create_task(ask(client, constraint, fields))
        assert (await client.get("/health")).status_code == 200
    assert not failed


LARK = """
start: "the sum is " number
number: DIGIT DIGIT
%import common.DIGIT
"""


async def test_a_grammar_in_lark_holds(demo_gateway):
    body = {
        "messages": [{"role": "user", "content": "What is 84 - 37?"}],
        "structured_outputs": {"grammar": LARK},
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 200,
    }
    async with httpx.AsyncClient(base_url=demo_gateway.url) as client:
        answer = await client.post("/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert re.fullmatch(r"the sum is \d\d", choice["message"]["content"]), choice
