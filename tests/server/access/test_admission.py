"""Admission: bounds, order, places freed, and an honest Retry-After."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import Priority, ServiceRate
from eaglegate.server.access.quota import KeyQuota
from eaglegate.server.errors import InvalidRequest, TooManyRequests


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


ANYBODY = Requester()


class Client:
    """One request against an admission, step by step."""

    def __init__(
        self,
        admission: Admission,
        visitor: Requester = ANYBODY,
        tokens: int = 10,
        sequences: int = 1,
    ) -> None:
        self.stack = ExitStack()
        self.place = self.stack.enter_context(admission.enter(visitor))
        self.task = asyncio.ensure_future(self.place.admit(sequences, tokens))

    @property
    def running(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None

    async def leave(self) -> None:
        if not self.task.done():
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        else:
            self.place.record_served()
        self.stack.close()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_are_given_in_order_and_freed():
    admission = Admission(AdmissionLimits(running=2))
    clients = [Client(admission) for _ in range(4)]
    await settle()
    assert [c.running for c in clients] == [True, True, False, False]
    await clients[0].leave()
    assert [c.running for c in clients[1:]] == [True, True, False]
    await clients[2].leave()
    await clients[1].leave()
    await clients[3].leave()
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)
    await admission.wait_until_empty()


async def test_a_class_goes_before_the_next():
    admission = Admission(AdmissionLimits(running=1))
    first = Client(admission)
    await settle()
    clients = [Client(admission, Requester(priority=p)) for p in reversed(Priority)]
    await settle()
    order = []
    for _ in clients:
        await (order[-1] if order else first).leave()
        order += [c for c in clients if c.running and c not in order]
    assert order == clients[::-1]


async def test_a_request_admitted_while_leaving_passes_on_its_place():
    admission = Admission(AdmissionLimits(running=1))
    clients = [Client(admission) for _ in range(3)]
    await settle()
    clients[1].task.cancel()
    clients[0].stack.close()
    await settle()
    clients[1].stack.close()
    await settle()
    assert clients[2].running
    clients[2].stack.close()
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)


async def test_queued_prompt_tokens_are_bounded():
    admission = Admission(AdmissionLimits(running=1, queued_tokens=100))
    clients = [Client(admission, tokens=500), Client(admission, tokens=80)]
    third = Client(admission, tokens=30)
    await settle()
    assert isinstance(third.task.exception(), TooManyRequests)
    assert "80 prompt tokens are waiting, this request has 30 and at most 100" in str(
        third.task.exception()
    )
    third.stack.close()
    for client in clients:
        await client.leave()
    assert admission.queued_tokens == 0


async def test_a_key_has_so_many_requests_at_a_time():
    admission = Admission()
    visitor = Requester("a", concurrency=2)
    clients = [Client(admission, visitor) for _ in range(2)]
    with pytest.raises(TooManyRequests, match="'a' has 2 answers"):
        Client(admission, visitor)
    Client(admission, Requester("b", concurrency=2)).stack.close()
    await clients[0].leave()
    clients.append(Client(admission, visitor))
    with pytest.raises(TooManyRequests, match="'a' has 2 answers"):
        Client(admission, visitor)
    for client in clients[1:]:
        await client.leave()
    await Client(admission, Requester("c", concurrency=1)).leave()


async def test_the_time_that_is_needed_and_left_is_named():
    clock = Clock()
    admission = Admission(AdmissionLimits(running=1), clock)
    admission.rate.note(4.0)
    clients = [Client(admission), Client(admission)]
    await settle()
    with pytest.raises(
        TooManyRequests, match=r"about 9\.0 s are needed, 8\.5 s are left"
    ) as refused:
        Client(admission, Requester(deadline=clock.now + 8.5))
    assert refused.value.retry_after_s == pytest.approx(8)
    await Client(admission, Requester(deadline=clock.now + 9)).leave()
    with pytest.raises(TooManyRequests, match=r"0\.0 s are left"):
        Client(admission, Requester(deadline=clock.now - 5))
    for client in clients:
        await client.leave()


async def test_where_nobody_waits_no_deadline_is_refused():
    admission = Admission(AdmissionLimits(running=2), Clock())
    admission.rate.note(50.0)
    running = Client(admission)
    await settle()
    late = Client(admission, Requester(deadline=admission.clock() + 1))
    await settle()
    assert late.running
    for client in (running, late):
        await client.leave()


async def test_a_key_at_its_limit_comes_back_after_one_of_its_requests():
    admission, visitor = Admission(clock=Clock()), Requester("a", concurrency=2)
    clients = [Client(admission, visitor) for _ in range(2)]
    for typical_s, retry_s in ((0.5, 1.0), (10.0, 5.0)):
        for _ in range(128):
            admission.rate.note(typical_s)
        with pytest.raises(TooManyRequests) as refused:
            Client(admission, visitor)
        assert refused.value.code == "key_concurrency_exceeded"
        assert refused.value.retry_after_s == retry_s
    for client in clients:
        await client.leave()


async def test_until_empty_waits_for_the_last_to_leave():
    admission = Admission(AdmissionLimits(running=1))
    clients = [Client(admission, Requester(name)) for name in "ab"]
    empty = asyncio.ensure_future(admission.wait_until_empty())
    for client in clients:
        await settle()
        assert not empty.done()
        await client.leave()
    await asyncio.wait_for(empty, 1)
    assert admission.count_by_key() == {}


async def test_an_answer_of_several_choices_takes_as_many_of_a_key_s_places():
    admission, visitor = Admission(), Requester("a", concurrency=3)

    async def ask(sequences: int) -> ExitStack:
        with ExitStack() as trying:
            place = trying.enter_context(admission.enter(visitor))
            await place.admit(sequences, 1)
            return trying.pop_all()

    two = await ask(2)
    with pytest.raises(TooManyRequests, match="has 2 answers in progress, this request needs 2"):
        await ask(2)
    one = await ask(1)
    with pytest.raises(TooManyRequests, match="'a' has 3 answers in progress"):
        await ask(1)
    two.close()
    with pytest.raises(InvalidRequest, match=r"needs 4 answers .* may have 3") as refused:
        await ask(4)
    assert refused.value.param == "n"
    one.close()
    (await ask(3)).close()
    assert not admission._places
    assert not admission.num_in_flight


async def test_requests_refused_by_a_full_queue_do_not_count_for_the_quota():
    clock = Clock()
    admission, quota = (
        Admission(AdmissionLimits(running=1, queued=0), clock),
        KeyQuota("a", 1, clock=clock),
    )
    with pytest.raises(TooManyRequests, match="which is the limit"):
        Client(admission, Requester("a", quota=quota))
    quota.take()


@pytest.mark.parametrize(("left_s", "is_served"), [(6.0, True), (4.9, False)])
async def test_requests_too_late_for_their_deadline_pass_on_their_turn(left_s, is_served):
    clock = Clock()
    admission = Admission(AdmissionLimits(running=1), clock)
    admission.rate.note(4.0)
    running = Client(admission)
    await settle()
    hurried = Client(admission, Requester("hurried", deadline=clock.now + 20))
    behind = Client(admission, Requester("behind"))
    await settle()
    clock.now += 20 - left_s
    running.stack.close()
    await settle()
    if is_served:
        assert hurried.running
    else:
        assert hurried.task.exception().code == "deadline_unreachable"
    hurried.stack.close()
    await settle()
    assert behind.running
    behind.stack.close()


def test_the_rate_is_learned_from_how_long_places_are_held():
    clock = Clock()
    rate = ServiceRate(clock)
    assert rate.retry_after_s(10, 2) == rate.DEFAULT_S
    for _ in range(11):
        clock.now += 0.5
        rate.note(1.0)
    assert rate.per_s == pytest.approx(2)
    assert rate.retry_after_s(20, 2) == pytest.approx(10)
    assert rate.retry_after_s(10**6, 2) == rate.MAX_S
    rate.note(5.5, sequences=2)
    assert rate.wait_s(12, 2) == pytest.approx(11)


def test_the_rate_is_that_of_the_last_minute():
    clock = Clock()
    rate = ServiceRate(clock)
    rate.note(1.0)
    clock.now += 30
    rate.note(1.0)
    clock.now += 30
    assert rate.per_s == pytest.approx(1 / 60)
    clock.now += 0.5
    assert rate.per_s is None


@pytest.mark.parametrize("idle_s", [0, 14, 59, 61, 36000])
def test_idle_time_does_not_make_the_gateway_look_slow(idle_s):
    """Two requests of 7 s each before the pause; one place, so the real wait of a third is 14 s."""
    clock = Clock()
    rate = ServiceRate(clock)
    for _ in range(2):
        clock.now += 7
        rate.note(7.0)
    clock.now += idle_s
    assert rate.retry_after_s(2, 1) == pytest.approx(14)
    assert rate.typical_s == 7
    assert (rate.per_s is None) == (idle_s > 60 - 7)


async def test_a_request_refused_for_its_tokens_takes_no_place_in_the_queue():
    admission = Admission(AdmissionLimits(running=1, queued=2, queued_tokens=15))
    clients = []
    for _ in range(3):
        clients.append(Client(admission))
        await settle()
    assert isinstance(clients[2].task.exception(), TooManyRequests)
    assert admission.queued == 1
    newest = Client(admission, tokens=1)
    await settle()
    assert not newest.task.done()
    for client in (*clients, newest):
        await client.leave()
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)
