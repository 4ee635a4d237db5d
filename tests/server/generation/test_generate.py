"""One request from Job to events: what the client, the engine and the observers get."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.events import (
    Ending,
    Event,
    Finish,
    LogprobsDelta,
    Observer,
    RequestFacts,
    TokensDelta,
)
from eaglegate.engine.speculation.accounts.accounting import intern_step
from eaglegate.engine.types import Constraint, Step
from eaglegate.server.generation.trials import ConstraintTrials
from eaglegate.text.events import FinishReason
from tests.server.conftest import Lab


@dataclass
class Recorder(Observer):
    """Remembers what it is told of one request after another."""

    facts: list[RequestFacts] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)

    def begin(self, facts: RequestFacts) -> Recorder:
        self.facts.append(facts)
        return self

    def choice(self, sequence: str) -> Any:
        return self.events.setdefault(sequence, []).append

    def end(self, ending: Ending) -> None:
        self.endings.append(ending)

    def record_refusal(self, api: str, code: str, key: str | None = None) -> None:
        self.refusals.append((api, code))


@pytest.fixture
def recorder(lab: Lab) -> Recorder:
    lab.gateway.observer = recorder = Recorder()
    return recorder


async def test_an_observer_knows_each_choice_of_each_prompt(lab, recorder):
    lab.says("one two", [1])
    answer = await lab.complete(prompt=["a", "a longer prompt than the other"], n=2)
    assert answer.status == 200
    (facts,) = recorder.facts
    assert (facts.api, facts.model, facts.stream) == ("completions", "demo", False)
    assert facts.id == answer.json["id"]
    assert facts.sequences == tuple(f"{facts.id}-{at}" for at in range(4))
    assert [request.id for request in lab.engine.requests] == list(facts.sequences)
    lengths = [len(request.prompt) for request in lab.engine.requests]
    assert facts.prompt_tokens == max(lengths) > min(lengths)
    assert set(recorder.events) == set(facts.sequences)
    assert all(isinstance(events[-1], Finish) for events in recorder.events.values())
    assert recorder.endings == [Ending.COMPLETED]


@pytest.mark.parametrize(
    ("gateway_s", "client_s", "chose_timeout"),
    [(0.0, None, False), (0.0, 60, True), (50.0, None, False), (50.0, 60, False), (50.0, 40, True)],
)
async def test_an_observer_knows_whose_deadline_a_request_has(
    lab, recorder, gateway_s, client_s, chose_timeout
):
    lab.gateway.settings = replace(lab.gateway.settings, request_timeout_s=gateway_s)
    lab.says("one")
    assert (await lab.chat(timeout_s=client_s)).status == 200
    assert [facts.chose_timeout for facts in recorder.facts] == [chose_timeout]


async def test_an_observer_knows_what_was_refused(lab, recorder):
    assert (await lab.chat(messages=[{"role": "user", "content": "long " * 500}])).status == 400
    lab.renderer.render_chat = lambda *_, **__: (_ for _ in ()).throw(ValueError("no"))
    assert (await lab.chat()).status == 400
    assert recorder.refusals == [
        ("chat", "context_length_exceeded"), ("chat", "invalid_request_error")
    ]  # fmt: skip
    assert recorder.facts == []


class Refusing:
    """Compiles nothing."""

    def is_known(self, constraint: Constraint) -> bool:
        return False

    async def check(self, constraint: Constraint) -> None:
        raise RequestRejected("too complex")


async def test_a_grammar_is_tried_before_the_engine_meets_it(lab, recorder):
    lab.says("a")
    lab.gateway.open(replace(lab.path(), trials=ConstraintTrials(Refusing())))
    answer = await lab.chat(structured_outputs={"regex": "(.?){600}"})
    assert answer.status == 400
    assert "too complex" in answer.json["error"]["message"]
    assert answer.json["error"]["param"] == "structured_outputs"
    assert not lab.engine.requests
    assert lab.gateway.pipeline.admission.num_in_flight == 0


async def test_a_completion_s_prompt_is_no_conversation(lab):
    """An open ``<think>`` in it does not make the answer a reasoning."""
    lab.says("{}")
    wanted = {"type": "json_object"}
    assert (await lab.complete(prompt="a<think>", response_format=wanted)).status == 200
    assert not lab.engine.requests[-1].constraint.after_reasoning


@pytest.mark.parametrize("n", [1, 2])
async def test_an_engine_that_ends_without_a_reason_is_an_error(lab, recorder, n):
    lab.engine.script = [Step(tuple(lab.renderer.encode("one", False)))]
    answer = await lab.chat(n=n)
    assert answer.status >= 500
    assert answer.json["error"]["code"] == "engine_silent"
    streamed = await lab.chat(n=n, stream=True)
    assert streamed.chunks[-1]["error"]["code"] == "engine_silent"
    assert set(recorder.endings) == {Ending.ERROR}


GRAMMAR = {"structured_outputs": {"regex": "a+"}}


@pytest.mark.parametrize(
    ("fields", "given", "words", "param"),
    [
        ({}, RequestRejected("no room for that"), "no room for that", None),
        ({}, RequestRejected("bad", param="seed"), "bad", "seed"),
        (GRAMMAR, RequestRejected("bad", param="seed"), "bad", "seed"),
        (GRAMMAR, RequestRejected("bad"), "cannot be compiled into a grammar: bad",
         "structured_outputs"),
    ],
)  # fmt: skip
async def test_an_engine_s_refusal_names_the_grammar_where_there_is_one(
    lab, fields, given, words, param
):
    lab.engine.script = [given]
    error = (await lab.chat(**fields)).json["error"]
    assert error["message"].endswith(words)
    assert ("grammar" in error["message"]) is ("grammar" in words)
    assert error["param"] == param


# -- tokens, log probabilities and their steps


async def test_events_without_anything_in_them_are_not_made(lab, recorder):
    word = tuple(lab.renderer.encode("one", False))
    for fields in ({}, {"return_token_ids": True}):
        lab.engine.script = [Step(word), Step((), finish=FinishReason.STOP)]
        assert (await lab.chat(**fields)).status == 200
    plain, named = recorder.events.values()
    assert not [e for e in plain if isinstance(e, TokensDelta | LogprobsDelta)]
    assert [e.token_ids for e in named if isinstance(e, TokensDelta)] == [word]
    assert not [e for e in named if isinstance(e, LogprobsDelta)]
    lab.says_with_logprobs("one two")
    assert (await lab.chat(stop=["one"], logprobs=True)).status == 200
    *_, last = recorder.events.values()
    assert all(e.positions for e in last if isinstance(e, LogprobsDelta))


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_after_a_stop_are_neither_delivered_nor_billed(lab, stream):
    ids = lab.renderer.encode("one two three four five", False)
    lab.engine.script = [Step(tuple(ids), finish=FinishReason.LENGTH)]
    kept = len(lab.renderer.encode("one two three", False))
    fields = {"stop": ["three"], "return_token_ids": True}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = await lab.chat(stream=stream, **fields, **options)
    if stream:
        choices = [chunk["choices"][0] for chunk in answer.chunks if chunk["choices"]]
        token_ids = [id for choice in choices for id in choice.get("token_ids") or ()]
        usage, last = answer.chunks[-1]["usage"], choices[-1]
    else:
        usage, last = answer.json["usage"], answer.json["choices"][0]
        token_ids = last["token_ids"]
        assert last["message"]["content"] == "one two "
    assert token_ids == ids[:kept]
    assert usage["completion_tokens"] == kept
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "three")


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("cuts", [[], [1] * 30, [2, 5, 3, 1], [30]])
@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_wait_for_min_tokens(lab, url, cuts, stream):
    """As in vLLM, one that ends within the first ``min_tokens`` is text."""
    words = "one two one two one two one two"
    lab.says(words, cuts)
    pieces = [lab.renderer.decode([id]) for id in lab.renderer.encode(words, False)]
    minimum = next(at for at in range(len(pieces)) if "".join(pieces[:at]).count("two") == 2)
    body = {"min_tokens": minimum, "stop": ["two"], "stream": stream, "model": "demo"}
    if url == "/v1/chat/completions":
        body["messages"] = [{"role": "user", "content": "hi"}]
    body["input" if url == "/v1/responses" else "prompt"] = "hi"
    answer = await lab.post(url, body)
    frames = re.findall(rb"^data: (\{.*)", answer.body, re.MULTILINE) if stream else [answer.body]
    text = "".join(find_texts(map(orjson.loads, frames)))
    assert text.rstrip() == "one two one two one"


def find_texts(chunks: Iterable[dict]) -> Iterator[str]:
    """Yield the text of an answer in any API, whole or in chunks."""
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            message = choice.get("delta") or choice.get("message") or choice
            yield message.get("content") or message.get("text") or ""
        if chunk.get("type") == "response.output_text.delta":
            yield chunk["delta"]
        for item in chunk.get("output", ()):
            yield from (part["text"] for part in item.get("content", ()))


async def test_the_token_that_ended_it_is_its_stop_reason(lab):
    word = tuple(lab.renderer.encode("one", False))
    lab.engine.script = [Step(word, finish=FinishReason.STOP, stop_token=7)]
    choice = (await lab.chat(stop_token_ids=[7])).json["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 7)


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
async def test_text_that_might_have_become_something_else_is_not_lost(lab, finish):
    """The beginning of a marker, or of a stop string, at the end of the answer."""
    for text in ("a < b <tool_ca", "one two thr"):
        lab.says(text, [1], finish)
        choice = (await lab.chat(stop=["three"], tools=[TOOL])).json["choices"][0]
        assert choice["message"]["content"] == text
        assert choice["finish_reason"] == finish.value


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        ((), (0, 0)),
        ((intern_step(3, 1, 2),), (1, 2)),
        ((intern_step(3, 1, 2), intern_step(3, 2, 3)), (3, 3)),
    ],
)
async def test_drafts_are_part_of_the_usage(lab, recorder, decode, expected):
    size = sum(step.delivered for step in decode)
    ids = tuple(range(300, 301 + size))
    lab.engine.script = [Step(ids[:1]), Step(ids[1:], decode, finish=FinishReason.LENGTH)]
    usage = (await lab.chat()).json["usage"]
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == 1 + size
    accepted, rejected = "accepted_prediction_tokens", "rejected_prediction_tokens"
    assert (details.get(accepted) or 0, details.get(rejected) or 0) == expected
    (events,) = recorder.events.values()
    assert (events[-1].usage.accepted is None) is (not decode)
    assert (events[-1].usage.rejected is None) is (not decode)
