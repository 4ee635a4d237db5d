"""An engine with lookups is told what an answer may quote."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from eaglegate.engine.speculation.policy.policy import SpeculationRules
from eaglegate.engine.vllm_fields import MAX_QUOTES
from eaglegate.server.generation import quotes
from eaglegate.server.generation.twins import escape
from eaglegate.text.rendering.encoding import NO_LIMITS

CODE = 'def f():\n    return "x"\n'
MESSAGES = [
    {"role": "user", "content": "read it"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": CODE},
]


def open_with_lookups(lab, width: int, takes_quotes: bool = True) -> None:
    path = lab.path()
    speculation = replace(path.info.speculation, lookup=width, takes_quotes=takes_quotes)
    lab.gateway.open(replace(path, info=replace(path.info, speculation=speculation)))


async def test_tool_results_come_with_every_choice(lab):
    open_with_lookups(lab, 8)
    lab.says("done")
    assert (await lab.chat(messages=MESSAGES, n=2)).status == 200
    twin = tuple(lab.renderer.encode(escape(CODE), False, NO_LIMITS))
    assert [request.quotes for request in lab.engine.requests] == [twin, twin]


@pytest.mark.parametrize(("takes_quotes", "depth"), [(False, None), (True, 0)])
async def test_nothing_is_encoded_without_lookups_of_quotes(lab, takes_quotes, depth):
    open_with_lookups(lab, 8, takes_quotes)
    lab.says("done")
    extra = {} if depth is None else {"num_speculative_tokens": depth}
    assert (await lab.chat(messages=MESSAGES, **extra)).status == 200
    assert [request.quotes for request in lab.engine.requests] == [()]


async def test_nothing_is_encoded_where_a_rule_switches_lookups_off(lab):
    open_with_lookups(lab, 8)
    lab.gateway.require().policy.rules = SpeculationRules(lookup=0)
    lab.says("done")
    assert (await lab.chat(messages=MESSAGES)).status == 200
    assert [(request.quotes, request.lookup) for request in lab.engine.requests] == [((), 0)]


async def test_quotes_are_bounded(lab):
    lab.max_model_len = 1 << 20
    open_with_lookups(lab, 8)
    lab.says("done")
    long_result = MESSAGES[-1] | {"content": CODE * 20_000}
    assert (await lab.chat(messages=[*MESSAGES[:-1], long_result])).status == 200
    (request,) = lab.engine.requests
    assert 0 < len(request.quotes) <= MAX_QUOTES


async def test_a_large_conversation_is_not_walked_on_the_event_loop(lab, monkeypatch):
    """One that is cut to fit the context may be of any size."""
    threads = []
    monkeypatch.setattr(
        quotes, "write_twins", lambda _: threads.append(threading.current_thread()) or ""
    )
    open_with_lookups(lab, 8)
    lab.says("done")
    long_call = {"name": "read", "arguments": f"[{'1,' * 100_000}1]"}
    calls = [{"id": "1", "type": "function", "function": long_call}]
    messages = [MESSAGES[0], MESSAGES[1] | {"tool_calls": calls}, MESSAGES[2]]
    answer = await lab.chat(messages=messages, truncate_prompt_tokens=-1)
    assert answer.status == 200
    (thread,) = threads
    assert thread is not threading.main_thread()
