"""Constraints are tried out in a queue of their own, shared fairly."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from eaglegate.engine.errors import EngineFailed, RequestRejected
from eaglegate.engine.types import Constraint
from eaglegate.server.access.admission import AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.errors import InvalidRequest, TooManyRequests
from eaglegate.server.generation.trials import ConstraintTrials
from tests.server.conftest import wait_until

ANN, BOB = Requester("ann"), Requester("bob")


class Probe:
    """Tries one after the other, when a test says so."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.verdicts: set[str] = set()
        self.go = asyncio.Semaphore(0)

    def is_known(self, constraint: Constraint) -> bool:
        return constraint.value in self.verdicts

    async def check(self, constraint: Constraint) -> None:
        if not self.is_known(constraint):
            await self.go.acquire()
            self.tried.append(constraint.value)
            if "odd" in constraint.value:
                raise EngineFailed("There was no time.")
        if "bad" in constraint.value:
            raise RequestRejected("it is too complex")
        self.verdicts.add(constraint.value)

    def finish(self, trials: int) -> None:
        for _ in range(trials):
            self.go.release()


def regex(value: str) -> list[Constraint | None]:
    return [Constraint("regex", value), None, Constraint("regex", value)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_keys_take_turns():
    probe = Probe()
    trials = ConstraintTrials(probe)
    tasks = [asyncio.ensure_future(trials.check(regex(f"a{at}"), ANN, "f")) for at in range(20)]
    await settle()
    tasks.append(asyncio.ensure_future(trials.check(regex("b"), BOB, "f")))
    await settle()
    probe.finish(30)
    await asyncio.gather(*tasks)
    assert probe.tried.index("b") <= 1
    assert sorted(probe.tried) == sorted([*(f"a{at}" for at in range(20)), "b"])
    await trials.check(regex("b"), BOB, "f")
    assert probe.tried.count("b") == 1, "known ones need no turn"


async def test_the_queue_is_bounded_and_the_flood_is_what_is_refused():
    probe = Probe()
    trials = ConstraintTrials(probe, AdmissionLimits(running=1, queued=4))
    tasks = [asyncio.ensure_future(trials.check(regex(f"a{at}"), ANN, "f")) for at in range(1)]
    await settle()
    tasks += [asyncio.ensure_future(trials.check(regex(f"a{at}"), ANN, "f")) for at in range(1, 9)]
    await settle()
    refused = [task.exception() for task in tasks if task.done()]
    assert len(refused) == 4
    assert all(isinstance(error, TooManyRequests) for error in refused)
    assert {error.code for error in refused} == {"constraint_queue_full"}
    assert all(error.retry_after_s for error in refused)
    mine = asyncio.ensure_future(trials.check(regex("b"), BOB, "f"))
    await settle()
    assert not mine.done(), "it displaced one of the flood"
    probe.finish(20)
    await asyncio.gather(*tasks, return_exceptions=True)
    await mine
    queue = trials.queue
    assert (queue.running, queue.queued, queue.queued_tokens, queue.num_in_flight) == (0, 0, 0, 0)


async def test_a_verdict_names_the_field():
    probe = Probe()
    probe.finish(10)
    trials = ConstraintTrials(probe)
    with pytest.raises(InvalidRequest, match="too complex") as refused:
        await trials.check(regex("bad"), ANN, "response_format")
    assert refused.value.param == "response_format"
    assert trials.queue.running == 0
    with pytest.raises(Exception, match="no time"):
        await trials.check(regex("odd"), ANN, "response_format")
    await trials.check([None], ANN, "response_format")


async def test_an_abandoned_trial_ends_before_the_next_begins():
    probe = Probe()
    trials = ConstraintTrials(probe)
    left = asyncio.ensure_future(trials.check(regex("a bad one"), ANN, "f"))
    await settle()
    waiting = asyncio.ensure_future(trials.check(regex("c"), ANN, "f"))
    await settle()
    left.cancel()
    waiting.cancel()
    mine = asyncio.ensure_future(trials.check(regex("b"), BOB, "f"))
    await settle()
    assert (trials.queue.running, trials.queue.queued) == (1, 1)
    probe.finish(2)
    await mine
    assert probe.tried == ["a bad one", "b"]
    await settle()
    assert trials.queue.num_in_flight == 0


async def test_known_verdicts_need_no_place_in_a_full_queue():
    probe = Probe()
    probe.verdicts |= {"known", "known and bad"}
    trials = ConstraintTrials(probe, AdmissionLimits(running=1, queued=0))
    with pytest.raises(TooManyRequests):
        await trials.check(regex("new"), ANN, "f")
    await trials.check(regex("known"), ANN, "f")
    with pytest.raises(InvalidRequest, match="too complex"):
        await trials.check(regex("known and bad"), ANN, "f")


async def test_four_mebibytes_of_constraints_wait_at_most():
    probe = Probe()
    trials = ConstraintTrials(probe)
    tasks = [asyncio.ensure_future(trials.check(regex("a"), ANN, "f"))]
    await settle()
    long = "b" * (4 << 20)
    tasks.append(asyncio.ensure_future(trials.check(regex(long), ANN, "f")))
    await settle()
    assert trials.queue.queued_tokens == 4 << 20
    with pytest.raises(TooManyRequests) as refused:
        await trials.check(regex("c"), ANN, "f")
    assert refused.value.code == "constraint_queue_full"
    probe.finish(2)
    await asyncio.gather(*tasks)


async def test_the_queue_learns_from_trials_that_came_to_a_verdict():
    probe = Probe()
    probe.finish(9)
    trials = ConstraintTrials(probe)
    with pytest.raises(InvalidRequest):
        await trials.check(regex("bad"), ANN, "f")
    assert trials.queue.rate.wait_s(1, 1) is None
    await trials.check(regex("good"), ANN, "f")
    assert trials.queue.rate.wait_s(1, 1) is not None


async def test_a_trial_that_is_cancelled_leaves_its_place():
    class Stopped(Probe):
        async def check(self, constraint: Constraint) -> None:
            raise asyncio.CancelledError

    trials = ConstraintTrials(Stopped())
    with pytest.raises(asyncio.CancelledError):
        await trials.check(regex("a"), ANN, "f")
    await settle()
    assert (trials.queue.running, trials.queue.num_in_flight) == (0, 0)
    assert trials.queue.rate.wait_s(1, 1) is None


async def test_a_deadline_that_the_queue_cannot_meet_keeps_its_code():
    probe = Probe()
    trials = ConstraintTrials(probe)
    trials.queue.rate.note(10.0)
    tasks = [asyncio.ensure_future(trials.check(regex(f"a{at}"), ANN, "f")) for at in range(2)]
    await settle()
    hurried = replace(BOB, deadline=trials.queue.clock() + 5)
    with pytest.raises(TooManyRequests) as refused:
        await trials.check(regex("b"), hurried, "f")
    assert refused.value.code == "deadline_unreachable"
    probe.finish(2)
    await asyncio.gather(*tasks)


@pytest.fixture
def probed(lab):
    lab.says("x")
    lab.admit("flood", "victim")
    return lab


def schema(at: int, body: str = "[a-z]{0,3}") -> dict[str, object]:
    shape = {"type": "object", "properties": {f"p{at}": {"type": "string", "pattern": body}}}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": shape}}


@pytest.mark.thorough
async def test_trials_hold_no_place_in_the_engine(probed):
    probe = Probe()
    probed.gateway.open(replace(probed.gateway.pipeline, trials=ConstraintTrials(probe)))
    admission = probed.gateway.pipeline.admission
    admission.bounds = AdmissionLimits(running=1, queued=1024)
    flood = [
        asyncio.ensure_future(probed.chat(key="flood", response_format=schema(at)))
        for at in range(280)
    ]
    await wait_until(lambda: admission.queued >= 60)
    assert admission.running == 0
    async with asyncio.timeout(30):
        assert (await probed.chat(key="victim")).status == 200
        await wait_until(lambda: sum(task.done() for task in flood) >= 280 - 65)
    probe.finish(1000)
    statuses = [(await task).status for task in flood]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == 65, "one on trial, 64 waiting"
    assert (admission.running, admission.queued, admission.num_in_flight) == (0, 0, 0)


USER = [{"role": "user", "content": "hi"}]
BAD_REGEX = {"regex": "bad"}
BAD_SCHEMA = {"type": "object", "properties": {"bad": {}}}
BAD_TOOL = {"name": "f", "parameters": BAD_SCHEMA}


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("chat/completions", {"messages": USER, "structured_outputs": BAD_REGEX},
         "structured_outputs"),
        ("chat/completions", {"messages": USER, "guided_regex": "bad"}, "guided_regex"),
        ("chat/completions", {"messages": USER, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": BAD_SCHEMA}}},
         "response_format"),
        ("chat/completions", {"messages": USER, "tool_choice": "required",
                              "tools": [{"type": "function", "function": BAD_TOOL}]}, "tools"),
        ("completions", {"prompt": "hi", "structured_outputs": BAD_REGEX}, "structured_outputs"),
        ("responses", {"input": "hi", "structured_outputs": BAD_REGEX}, "structured_outputs"),
        ("responses", {"input": "hi", "text": {"format": {
            "type": "json_schema", "name": "x", "schema": BAD_SCHEMA}}}, "text.format"),
    ],
)  # fmt: skip
async def test_the_field_that_was_given_is_named(lab, url, body, param):
    probe = Probe()
    probe.finish(1)
    lab.gateway.open(replace(lab.gateway.pipeline, trials=ConstraintTrials(probe)))
    answer = await lab.post(f"/v1/{url}", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
