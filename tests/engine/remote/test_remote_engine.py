"""One worker as an Engine, against a scripted worker on a real port."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from eaglegate.engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    EngineStartError,
    RequestRejected,
    WorkerMisconfigured,
)
from eaglegate.engine.remote.protocols import parse_upstream
from eaglegate.engine.speculation.accounts.accounting import Account
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import Constraint, EngineRequest, Sampling, UndraftedReason
from eaglegate.text.events import FinishReason
from tests.engine.remote.stand_in_worker import ACCESS, StandIn, chunk, end, running

pytestmark = pytest.mark.thorough


def request(**fields) -> EngineRequest:
    sampling = fields.pop("sampling", Sampling(max_tokens=64, temperature=0.0))
    return EngineRequest(id="r-1", prompt=(5, 6, 7), sampling=sampling, **fields)


async def steps_of(engine, asked):
    async with aclosing(read_steps(engine.generate, asked)) as steps:
        return [step async for step in steps]


def totals_of(steps):
    account = Account()
    for step in steps:
        account.add(step)
    return account.totals


@pytest.mark.parametrize(
    ("said", "version"),
    [("0.33.0+cu130", "0.33.0+cu130"), (None, None), ([7], None), ("7" * 99, None), ("", None)],
)
async def test_a_worker_may_name_its_version(said, version):
    async with running(StandIn(version=said)) as engine:
        assert engine.info.details.get("version") == version


async def test_steps_and_the_account_at_the_end():
    worker = StandIn(
        lambda _: [
            chunk(10),
            chunk(11, 12, 13),
            chunk(14),
            chunk(15, 2, finish="stop"),
            end((3, 2), (3, 0), (3, 3), cached=2),
        ]
    )
    async with running(worker) as engine:
        steps = await steps_of(engine, request())
    assert [step.token_ids for step in steps] == [(10,), (11, 12, 13), (14,), (15, 2)]
    last = steps[-1]
    assert (last.finish, last.stop_token, last.cached_tokens) == (FinishReason.STOP, 2, 2)
    totals = totals_of(steps)
    assert (totals.tokens, totals.first_tokens, totals.imbalance) == (7, 1, 0)
    assert (totals.verify_steps, totals.proposed) == (3, 9)
    assert totals.accepted + totals.cut == 5
    assert totals.cut == 1
    assert totals.rejected == 1


async def test_everything_a_request_carries_goes_over():
    worker = StandIn(lambda _: [chunk(1, finish="length"), end()])
    asked = request(
        sampling=Sampling(
            max_tokens=9,
            min_tokens=2,
            temperature=0.7,
            top_p=0.9,
            top_k=4,
            min_p=0.1,
            seed=3,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.1,
            logit_bias={4: -1.5},
            stop_token_ids=(7, 8),
            ignore_eos=True,
            logprobs=2,
        ),
        constraint=Constraint("regex", "[ab]+"),
        depth=1,
        priority=-4,
        cache_salt="salt",
        trace_headers={"traceparent": "00-aa-bb-01"},
    )
    async with running(worker) as engine:
        await steps_of(engine, asked)
    (body,) = worker.bodies
    assert body["token_ids"] == [5, 6, 7]
    assert (body["priority"], body["cache_salt"], body["request_id"]) == (-4, "salt", "r-1")
    assert body["reasoning_ended"] is True
    assert body["sampling_params"] == {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {"4": -1.5},
        "stop_token_ids": [7, 8],
        "ignore_eos": True,
        "logprobs": 3,
        "detokenize": False,
        "structured_outputs": {"regex": "[ab]+"},
        "extra_args": {"num_speculative_tokens": 1, "traffic": "chat"},
    }
    assert worker.asked[-1].headers["traceparent"] == "00-aa-bb-01"


async def test_logprobs_are_the_chosen_and_the_most_likely():
    entry = {"token_id": 9, "logprob": -3.0, "rank": 4}
    top = [entry, {"token_id": 1, "logprob": -0.1, "rank": 1}]
    top.append({"token_id": 2, "logprob": -1.0, "rank": 2})
    said = {"content": [entry | {"top_logprobs": top}]}
    worker = StandIn(lambda _: [chunk(9, finish="length", logprobs=said), end()])
    async with running(worker) as engine:
        asked = request(sampling=Sampling(max_tokens=1, logprobs=2))
        (step,) = await steps_of(engine, asked)
    (position,) = step.logprobs
    assert (position.chosen.token_id, position.chosen.rank) == (9, 4)
    assert [other.token_id for other in position.top] == [1, 2]


async def test_prompt_logprobs_come_with_an_answer_that_is_not_streamed():
    async with running(StandIn()) as engine:
        asked = request(sampling=Sampling(max_tokens=9, temperature=0.0, prompt_logprobs=1))
        (step,) = await steps_of(engine, asked)
    first, second, _ = step.prompt_logprobs
    assert first is None
    assert second.chosen.token_id == 6
    assert len(step.token_ids) == 9


@pytest.mark.parametrize(
    ("status", "headers", "healthy", "kind"),
    [
        (400, {}, True, RequestRejected),
        (422, {}, True, RequestRejected),
        (401, {}, True, WorkerMisconfigured),
        (429, {"retry-after": "7"}, True, EngineOverloaded),
        (503, {"retry-after": "7"}, True, EngineOverloaded),
        (503, {}, False, EngineDead),
        (500, {}, True, EngineFailed),
        (500, {}, False, EngineDead),
        (502, {}, True, EngineDead),
    ],
)
async def test_statuses_become_engine_errors(status, headers, healthy, kind):
    worker = StandIn()
    async with running(worker) as engine:
        worker.status, worker.headers, worker.healthy = status, headers, healthy
        with pytest.raises(kind) as caught:
            await steps_of(engine, request())
        assert type(caught.value) is kind
    if issubclass(kind, RequestRejected | EngineFailed | EngineOverloaded):
        assert "as the script says" not in str(caught.value), "these go to clients"
    if kind is EngineOverloaded:
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("code", "healthy", "kind"),
    [(400, True, RequestRejected), (500, True, EngineFailed), (500, False, EngineDead)],
)
async def test_an_error_inside_a_stream(code, healthy, kind):
    worker = StandIn(lambda _: [{"error": {"message": "bad grammar", "code": code}}])
    async with running(worker) as engine:
        worker.healthy = healthy
        with pytest.raises(kind) as caught:
            await steps_of(engine, request())
    assert ("bad grammar" in str(caught.value)) is (kind is EngineDead), "the others go to clients"
    assert ("output format" in str(caught.value)) is (kind is RequestRejected)


async def test_a_broken_stream_is_a_dead_engine_and_its_tokens_stand():
    worker = StandIn(lambda _: [chunk(1), chunk(2, 3), 0.05, ConnectionError()])
    async with running(worker) as engine:
        seen = []
        with pytest.raises(EngineDead):
            async for step in read_steps(engine.generate, request()):
                seen += step.token_ids
    assert seen == [1, 2, 3]


async def test_a_silent_worker_is_dead():
    worker = StandIn(lambda _: [chunk(1), 30.0])
    async with running(worker) as engine:
        with pytest.raises(EngineDead, match="stopped answering"):
            await steps_of(engine, request())


async def test_leaving_closes_the_workers_stream():
    worker = StandIn(lambda _: [chunk(1), *[0.01, chunk(2)] * 1000])
    async with running(worker) as engine:
        async with aclosing(read_steps(engine.generate, request())) as steps:
            await anext(steps)
            assert worker.running == 1
        async with asyncio.timeout(5):
            await worker.idle.wait()


async def test_closing_the_engine_ends_what_runs():
    worker = StandIn(lambda _: [chunk(1), *[0.01, chunk(2)] * 1000])
    async with running(worker) as engine:
        steps = read_steps(engine.generate, request())
        await anext(steps)
        await engine.aclose()
        with pytest.raises(EngineDead):
            async for _ in steps:
                pass
        with pytest.raises(EngineDead, match="closed"):
            await anext(read_steps(engine.generate, request()))


async def test_connections_are_used_again():
    worker = StandIn(lambda _: [chunk(1, finish="length"), end()])
    async with running(worker) as engine:
        for _ in range(3):
            await steps_of(engine, request())
    assert len({asked.client.port for asked in worker.asked[-3:]}) == 1


async def test_a_worker_is_described_after_the_start():
    async with running(StandIn()) as engine:
        info = engine.info
    assert (info.model, info.max_model_len, info.vocab_size) == ("demo", 4096, 2048)
    assert info.reports_decode_steps
    assert (info.speculation.depth, info.speculation.per_request) == (3, True)
    assert "K = 3" in info.speculation.summary
    assert "unknown" in info.speculation.summary


@pytest.mark.parametrize(
    ("lookup", "version", "description"),
    [
        ("0", "0.1.0", "eaglegate 0.1.0, depth auto"),
        ("7", "0.1.0", "eaglegate 0.1.0, depth auto, lookups of up to 7 tokens"),
        ("0", "<b>", None),
    ],
)
async def test_a_pod_is_named(lookup: str, version: str, description: str | None) -> None:
    labels = f'depth="auto",lookup="{lookup}",version="{version}",vllm="0.32.0"'
    worker = StandIn(version="0.32.0", exposition=f"eaglegate_pod_info{{{labels}}} 1.0\n")
    async with running(worker) as engine:
        assert engine.info.details.get("plug-in") == description


async def test_a_depth_that_is_not_honoured_is_not_sent():
    worker = StandIn(lambda _: [chunk(1, finish="length"), end()], honours=False)
    async with running(worker) as engine:
        assert not engine.info.speculation.per_request
        assert "not honoured" in engine.info.speculation.summary
        await steps_of(engine, request(depth=1))
    assert "extra_args" not in worker.bodies[-1]["sampling_params"]


async def test_a_worker_without_speculation_has_plain_steps():
    script = [chunk(1), chunk(2), chunk(3, 4, finish="length"), end(told=False)]
    async with running(StandIn(lambda _: script, speculates=False)) as engine:
        steps = await steps_of(engine, request())
        assert engine.info.speculation.method == "none"
    totals = totals_of(steps)
    assert (totals.off, totals.verify_steps, totals.imbalance) == (3, 0, 0)


async def test_a_worker_that_does_not_account_has_no_steps():
    script = [chunk(1), chunk(2, 3, finish="length"), end(told=False)]
    async with running(StandIn(lambda _: script, accounts=False)) as engine:
        steps = await steps_of(engine, request())
        assert not engine.info.reports_decode_steps
        assert "--per-request-spec-decode-metrics" in engine.info.speculation.summary
    assert not any(step.decode for step in steps)


async def test_another_tokenizer_is_refused():
    with pytest.raises(EngineStartError, match="another tokenizer"):
        async with running(StandIn(tokens=[1, 2, 3])):
            pass


async def test_a_worker_that_does_not_come_is_waited_for_in_vain():
    with pytest.raises(EngineStartError, match="not ready after 1 s"):
        async with running(StandIn(healthy=False)):
            pass


async def test_a_worker_that_comes_late_is_waited_for():
    worker = StandIn(healthy=False)
    worker_task = asyncio.create_task(_heal(worker))
    async with running(worker, replace(ACCESS, start_s=10.0)) as engine:
        assert (await engine.health()).live
    await worker_task


async def _heal(worker: StandIn) -> None:
    await asyncio.sleep(0.2)
    worker.healthy = True


async def test_health_says_why_not():
    worker = StandIn()
    async with running(worker) as engine:
        worker.healthy = False
        health = await engine.health()
    assert not health.live
    assert "503" in health.reason


async def test_steps_at_depth_0_are_off_and_others_undrafted():
    script = [chunk(1), chunk(2), chunk(3, finish="length"), end()]
    async with running(StandIn(lambda _: script)) as engine:
        off = await steps_of(engine, request(depth=0))
        undrafted = await steps_of(engine, request())
    assert {step.undrafted for step in off[-1].decode} == {UndraftedReason.OFF}
    assert {step.undrafted for step in undrafted[-1].decode} == {UndraftedReason.REFUSED}


@pytest.mark.parametrize(
    "given", ["", "worker:8000", "ftp://worker", "http://", "text+", "text+worker"]
)
def test_invalid_addresses_are_refused(given):
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        parse_upstream(given)


def test_addresses():
    assert str(parse_upstream(" http://w:8000/ ")) == "http://w:8000"
    assert parse_upstream("http://w:8000/v1").url == "http://w:8000"
    assert str(parse_upstream("text+https://w/base")) == "text+https://w/base"
