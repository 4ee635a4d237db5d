"""Places in the engine: which stay free, who gets the last, who goes past a wide request."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from eaglegate.server.access.admission import Admission, AdmissionLimits, Priority, Requester
from eaglegate.server.errors import TooManyRequests
from tests.server.access.test_admission import Client, Clock, settle

HIGH_AND_NORMAL = frozenset({Priority.HIGH, Priority.NORMAL})


@pytest.mark.parametrize(
    ("running", "kept"), [(1, 0), (2, 1), (16, 1), (31, 1), (32, 2), (256, 16)]
)
def test_one_place_in_sixteen_stays_free(running, kept):
    assert AdmissionLimits(running).reserved == kept


async def flood_of(admission: Admission, visitor: Requester, requests: int = 20) -> list[Client]:
    clients = [Client(admission, visitor) for _ in range(requests)]
    await settle()
    return clients


async def end_all(*clients: Client) -> None:
    for client in reversed(clients):
        await client.leave()


async def test_places_stay_free_for_higher_classes_that_keys_have():
    normal, high = Requester("normal"), Requester("high", Priority.HIGH)
    admission = Admission(AdmissionLimits(running=16), classes=HIGH_AND_NORMAL)
    flood = await flood_of(admission, normal)
    assert admission.running == 15
    first = Client(admission, high)
    await settle()
    assert (first.running, admission.running) == (True, 16)
    await first.leave()
    await flood[0].leave()
    assert admission.running == 14, "one more, where the higher class is active"
    highs = await flood_of(admission, high, 2)
    assert admission.running == 16
    await end_all(*flood[1:], *highs)
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_low_class_always_has_one_place():
    admission = Admission(AdmissionLimits(running=2), classes=frozenset(Priority))
    flood = await flood_of(admission, Requester("low", Priority.LOW), 3)
    assert admission.running == 1
    await end_all(*flood)


async def test_a_place_stays_free_for_a_key_below_its_share():
    clock = Clock()
    admission = Admission(AdmissionLimits(running=16), clock)
    other = Client(admission, Requester("other"))
    await settle()
    await other.leave()
    flood = await flood_of(admission, Requester("flood"))
    assert admission.running == 15
    other = Client(admission, Requester("other"))
    await settle()
    assert other.running
    await end_all(*flood, other)
    clock.now += 60
    alone = await flood_of(admission, Requester("flood"))
    assert admission.running == 16, "nobody else has asked for a minute"
    await end_all(*alone)


# -- requests for many places


@pytest.mark.parametrize(("typical_s", "overdue_s"), [(None, 30), (1.0, 30), (5.0, 80)])
async def test_a_wide_request_gets_its_turn_once_it_is_overdue(typical_s, overdue_s):
    """Keys below their share go past it until then."""
    clock = Clock()
    admission = Admission(AdmissionLimits(running=4), clock)
    if typical_s is not None:
        admission.rate.note(typical_s)
    singles = [Client(admission, Requester(f"key {at}")) for at in range(4)]
    await settle()

    async def replace_first() -> Client:
        first = singles.pop(0)
        first.stack.close()
        singles.append(Client(admission, first.place.requester))
        await settle()
        return singles[-1]

    with admission.enter(Requester("wide")) as place:
        waiting = asyncio.ensure_future(place.admit(4, 10))
        await settle()
        clock.now += overdue_s
        assert (await replace_first()).running, "it does not hold up others yet"
        clock.now += 0.1
        assert not (await replace_first()).running, "now it does"
        for single in singles[:3]:
            single.stack.close()
        await settle()
        assert waiting.done()
        assert not singles[3].running
    await settle()
    assert singles[3].running
    singles[3].stack.close()
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)


async def test_keys_of_its_class_go_past_a_wide_request_up_to_their_share():
    admission = Admission(AdmissionLimits(running=12))
    high = [Requester(name, Priority.HIGH) for name in ("busy", "wide", "small", "late")]
    busy = await flood_of(admission, high[0], 6)
    assert admission.running == 6
    stacks = [ExitStack() for _ in range(3)]

    def ask(visitor: Requester, sequences: int, stack: ExitStack) -> asyncio.Task[None]:
        place = stack.enter_context(admission.enter(visitor))
        return asyncio.ensure_future(place.admit(sequences, 1))

    wide = ask(high[1], 10, stacks[0])
    await settle()
    more = Client(admission, high[0])
    low = [Client(admission, Requester(f"low {at}", Priority.LOW)) for at in range(2)]
    await settle()
    assert not more.running, "it has more than its share"
    assert not any(client.running for client in low), "nor do lower classes go past it"
    too_much, share = ask(high[2], 5, stacks[1]), ask(high[3], 3, stacks[2])
    await settle()
    assert not too_much.done()
    assert share.done(), "12 places among 4 keys"
    too_much.cancel()
    wide.cancel()
    await settle()
    assert more.running, "what it held up goes on when it leaves the queue"
    for stack in stacks:
        stack.close()
    await settle()
    assert all(client.running for client in low)
    await asyncio.gather(wide, too_much, return_exceptions=True)
    await end_all(*busy, more, *low)
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)


@pytest.mark.parametrize("sequences", [2, 4, 10])
async def test_an_idle_engine_starts_whoever_is_next(sequences):
    """No place stays free for a key that sends nothing, nor for a class that has sent nothing."""
    admission = Admission(AdmissionLimits(running=4), Clock(), frozenset(Priority))
    await Client(admission, Requester("a")).leave()
    for name in "bab":
        wide = Client(admission, Requester(name, Priority.LOW), sequences=sequences)
        await settle()
        assert wide.running
        await wide.leave()
    assert admission.running == 0


# -- what is shared out


async def test_a_request_that_leaves_the_queue_is_not_counted():
    admission = Admission(AdmissionLimits(running=1))
    running, waiting = Client(admission, Requester("a")), Client(admission, Requester("b"))
    await settle()
    await waiting.leave()
    assert admission.count_by_key() == {"a": {"running": 1, "queued": 0}}
    await running.leave()


async def test_a_full_queue_is_shared_by_weight():
    admission = Admission(AdmissionLimits(running=1, queued=4))
    running = Client(admission, Requester("running"))
    await settle()
    light = await flood_of(admission, Requester("light"), 2)
    heavy = await flood_of(admission, Requester("heavy", weight=4), 2)
    heavy += await flood_of(admission, Requester("heavy", weight=4), 1)
    assert isinstance(light[1].task.exception(), TooManyRequests)
    assert admission.queued == 4
    await end_all(running, *light, *heavy)


async def test_waiting_tokens_are_shared_by_weight_and_to_the_last():
    admission = Admission(AdmissionLimits(running=1, queued_tokens=1000), Clock())
    running = Client(admission, Requester("running"))
    await settle()
    waiting = {
        name: Client(admission, Requester(name, weight=weight), tokens)
        for name, weight, tokens in (("middle", 4, 500), ("light", 1, 300), ("heavy", 8, 200))
    }
    await settle()
    assert admission.queued_tokens == 1000, "all of them may wait"
    one = Client(admission, Requester("heavy", weight=8), 1)
    await settle()
    assert isinstance(waiting["light"].task.exception(), TooManyRequests)
    assert not waiting["middle"].task.done()
    assert not one.task.done()
    await end_all(running, *waiting.values(), one)


async def test_a_deadline_is_not_refused_while_the_rate_is_unknown():
    admission = Admission(AdmissionLimits(running=1), Clock())
    clients = [Client(admission), Client(admission)]
    await settle()
    clients.append(Client(admission, Requester(deadline=admission.clock() + 0.5)))
    await end_all(*clients)


# -- the last free places


async def run(admission: Admission, name: str, number: int) -> list[Client]:
    clients = [Client(admission, Requester(name)) for _ in range(number)]
    await settle()
    assert all(client.running for client in clients)
    return clients


@pytest.mark.parametrize(("places", "is_taken"), [(16, False), (17, True)])
async def test_a_key_at_its_share_leaves_the_last_place_to_one_below_it(places, is_taken):
    """The eighth of 16 places is kept for b; of 17 it can have no ninth."""
    admission = Admission(AdmissionLimits(running=places))
    clients = [*await run(admission, "a", 1), *await run(admission, "b", places - 9)]
    clients += await run(admission, "a", 7)
    ninth = Client(admission, Requester("a"))
    await settle()
    assert ninth.running is is_taken
    await end_all(*clients, ninth)


async def test_a_request_for_one_place_is_never_overdue():
    clock = Clock()
    admission = Admission(
        AdmissionLimits(running=2), clock, frozenset({Priority.HIGH, Priority.NORMAL})
    )
    (running,) = await run(admission, "a", 1)
    waiting = Client(admission, Requester("b"))
    await settle()
    clock.now += 1000
    third = Client(admission, Requester("c"))
    await settle()
    assert not waiting.running, "the place is kept for a higher class"
    await end_all(running, waiting, third)


async def test_small_requests_of_a_key_do_not_delay_its_wide_one():
    clock = Clock()
    admission = Admission(AdmissionLimits(running=2), clock)
    (running,) = await run(admission, "b", 1)
    with admission.enter(Requester("a")) as place:
        clock.now += 20
        (small,) = await run(admission, "a", 1)
        await small.leave()
        waiting = asyncio.ensure_future(place.admit(2, 1))
        clock.now += 11
        other = Client(admission, Requester("c"))
        await settle()
        assert not other.running, "the wide one entered 31 s ago"
        await end(running)
        assert waiting.done()
        assert not other.running
    await other.leave()


async def test_a_key_holds_up_others_once_in_the_time_and_not_with_each_wide_request():
    clock = Clock()
    admission = Admission(AdmissionLimits(running=2), clock)
    (running,) = await run(admission, "b", 1)
    wide = [Client(admission, Requester("a"), sequences=2) for _ in range(2)]
    clock.now += 31
    small = Client(admission, Requester("c"))
    await end(running)
    assert [client.running for client in (*wide, small)] == [True, False, False]
    clock.now += 1
    await end(wide[0])
    assert small.running
    assert not wide[1].running
    for wait_s, passes in ((1, True), (30, False)):
        clock.now += wait_s
        other = Client(admission, Requester("b"))
        await settle()
        assert other.running is passes, "the last turn of its key was overdue"
        await end(other)
    await end(small)
    assert wide[1].running
    await end(wide[1])


async def end(client: Client) -> None:
    """End a request that does not count in the typical time."""
    if not client.task.done():
        client.task.cancel()
        await settle()
    client.stack.close()
    await settle()


async def test_a_request_that_left_the_queue_does_not_block_the_others():
    admission = Admission(AdmissionLimits(running=1))
    (running,) = await run(admission, "a", 1)
    waiting = [Client(admission) for _ in range(2)]
    await settle()
    waiting[1].task.cancel()
    admission.reject_waiting(error := TooManyRequests("over", code="over", retry_after_s=1))
    await settle()
    assert waiting[0].task.exception() is error
    assert waiting[1].task.cancelled()
    for client in (*waiting, running):
        client.stack.close()
    assert (admission.running, admission.queued, admission.queued_tokens) == (0, 0, 0)


async def test_prompt_tokens_make_room_from_whoever_has_most_after_each_displacement():
    admission = Admission(AdmissionLimits(running=1, queued_tokens=140))
    (running,) = await run(admission, "busy", 1)
    of_b = [Client(admission, Requester("b"), tokens=40) for _ in range(2)]
    of_c = Client(admission, Requester("c"), tokens=60)
    await settle()
    newest = Client(admission, Requester("a", weight=10.0), tokens=90)
    await settle()
    assert [client.task.done() for client in (*of_b, of_c, newest)] == [False, True, True, False]
    await end_all(running, *of_b, of_c, newest)
    assert admission.queued_tokens == 0


async def test_a_key_that_waits_for_nothing_makes_no_room():
    admission = Admission(AdmissionLimits(running=1, queued_tokens=5))
    (running,) = await run(admission, "idle", 1)
    running.place.flow.weight = 0.1
    of_b = Client(admission, Requester("b"), tokens=5)
    await settle()
    newest = Client(admission, Requester("a", weight=10.0), tokens=5)
    await settle()
    assert of_b.task.done()
    assert not newest.task.done()
    await end_all(running, of_b, newest)
