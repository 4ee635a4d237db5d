"""The last free places: the request that gets one, and the end of the others' wait."""

from __future__ import annotations

import asyncio

from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.errors import TooManyRequests
from tests.server.access.test_admission import Client, Clock, settle

HIGH_AND_NORMAL = frozenset({Priority.HIGH, Priority.NORMAL})


async def run(admission: Admission, name: str, number: int) -> list[Client]:
    clients = [Client(admission, Requester(name)) for _ in range(number)]
    await settle()
    assert all(client.running for client in clients)
    return clients


async def leave(*clients: Client) -> None:
    for client in reversed(clients):
        await client.leave()


async def test_a_key_at_its_share_leaves_the_last_place_to_one_below_it():
    admission = Admission(AdmissionLimits(running=16))
    clients = [*await run(admission, "a", 1), *await run(admission, "b", 7)]
    clients += await run(admission, "a", 7)
    ninth = Client(admission, Requester("a"))
    await settle()
    assert not ninth.running, "the eighth place of b is free"
    await leave(*clients, ninth)


async def test_a_key_takes_the_last_place_where_the_others_have_their_share():
    admission = Admission(AdmissionLimits(running=17))
    clients = [*await run(admission, "a", 1), *await run(admission, "b", 8)]
    clients += await run(admission, "a", 7)
    ninth = Client(admission, Requester("a"))
    await settle()
    assert ninth.running, "8.5 places each: b can have no ninth"
    await leave(*clients, ninth)


async def test_a_request_for_one_place_is_never_overdue():
    clock = Clock()
    admission = Admission(AdmissionLimits(running=2), clock, HIGH_AND_NORMAL)
    (running,) = await run(admission, "a", 1)
    waiting = Client(admission, Requester("b"))
    await settle()
    clock.now += 1000
    third = Client(admission, Requester("c"))
    await settle()
    assert not waiting.running, "the place is kept for a higher class"
    await leave(running, waiting, third)


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
    await leave(running, *of_b, of_c, newest)
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
    await leave(running, of_b, newest)
