"""Random histories of two keys against a simple model of what should come of them."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.scripted import Pause
from engine.types import FinishReason, Step
from server.access.admission import Admission, Bounds
from server.access.budget import Quota
from server.access.caller import Visitor
from server.access.fair_order import Priority
from server.access.keys import Key, KeyRing, digest_of
from server.errors import InvalidRequest, TooManyRequests
from server.store.base import Stored, StoredConversation, StoreLimits
from server.store.sql import SqlStore
from tests.server.conftest import Lab, call
from tests.server.test_responses import URL, said

OWNERS = st.sampled_from(["ann", "bob"])
OTHER = {"ann": "bob", "bob": "ann"}
FEW = settings(
    max_examples=15, stateful_step_count=25, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


class Machine(RuleBasedStateMachine):
    """With an event loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()

    def wait(self, awaitable):
        async def bounded():
            async with asyncio.timeout(20):
                return await awaitable

        return self.runner.run(bounded())

    def settle(self, rounds: int = 6) -> None:
        async def turns():
            for _ in range(rounds):
                await asyncio.sleep(0)

        self.wait(turns())

    def teardown(self) -> None:
        self.runner.close()


class Quotas(RuleBasedStateMachine):
    """A bucket holds so much, fills so fast, and is one key's own."""

    REQUESTS, TOKENS = 6, 60

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.quotas = {
            name: Quota(name, self.REQUESTS, self.TOKENS, lambda: self.now) for name in OTHER
        }
        self.levels = {name: [float(self.REQUESTS), float(self.TOKENS)] for name in OTHER}

    @rule(seconds=st.sampled_from([0.0, 0.5, 9.0, 10.0, 61.0, 1e5]))
    def pass_time(self, seconds):
        self.now += seconds
        for levels in self.levels.values():
            levels[0] = min(self.REQUESTS, levels[0] + seconds * self.REQUESTS / 60)
            levels[1] = min(self.TOKENS, levels[1] + seconds * self.TOKENS / 60)

    @rule(name=OWNERS)
    def take(self, name):
        levels = self.levels[name]
        if min(levels) > 1 - 1e-6 and min(levels) < 1 + 1e-6:
            return  # too close for floating point
        try:
            self.quotas[name].take()
        except TooManyRequests as error:
            assert min(levels) < 1
            short = 1 if levels[1] < 1 else 0
            rate = (self.REQUESTS, self.TOKENS)[short] / 60
            assert error.retry_after_s == pytest.approx((1 - levels[short]) / rate)
        else:
            assert min(levels) >= 1
            levels[0] -= 1

    @rule(name=OWNERS, tokens=st.integers(0, 200))
    def pay(self, name, tokens):
        self.quotas[name].pay(tokens)
        self.levels[name][1] -= tokens


class Responses(Machine):
    """What one owner stores the other can neither read, continue, settle nor delete."""

    stored = Bundle("stored")

    @initialize()
    def open(self):
        self.store = SqlStore("sqlite://")
        self.model: dict[str, Stored] = {}
        self.number = 0

    @rule(target=stored, owner=OWNERS, held=st.booleans())
    def put(self, owner, held):
        return self._put(owner, held, None)

    @rule(target=stored, owner=OWNERS, held=st.booleans(), previous=stored)
    def put_after(self, owner, held, previous):
        return self._put(owner, held, previous)

    def _put(self, owner, held, previous):
        id = f"r{(number := self.number)}"
        self.number += 1
        output = {"status": "completed", "output": [{"id": f"o{number}"}], "tools": [number]}
        until = time.time() + 60 if held else None
        made = Stored(id, owner, time.time(), output, [{"id": f"i{number}"}], previous, until)
        self.wait(self.store.put(made))
        self.model[id] = made
        return id

    @rule(id=stored, owner=OWNERS)
    def get(self, id, owner):
        found, known = self.wait(self.store.get(id, owner)), self.model.get(id)
        assert found == (known if known is not None and known.owner == owner else None)

    @rule(id=stored, owner=OWNERS)
    def delete(self, id, owner):
        mine = id in self.model and self.model[id].owner == owner
        assert self.wait(self.store.delete(id, owner)) == mine
        if mine:
            del self.model[id]

    @rule(id=stored, owner=OWNERS)
    def settle_it(self, id, owner):
        known = self.model.get(id)
        end = Stored(id, owner, 1e10, {"status": "cancelled", "output": []}, [], None)
        mine = known is not None and known.owner == owner and known.held_until is not None
        assert self.wait(self.store.settle(end)) == mine
        if mine:
            self.model[id] = end

    @rule(ids=st.lists(stored, max_size=4))
    def hold(self, ids):
        until = time.time() + 100
        held = {id for id in ids if id in self.model and self.model[id].held_until is not None}
        assert self.wait(self.store.hold(ids, until)) == held
        for id in held:
            self.model[id] = replace(self.model[id], held_until=until)

    @rule(id=stored, owner=OWNERS)
    def history(self, id, owner):
        turns, at = [], id
        while at is not None and (known := self.model.get(at)) and known.owner == owner:
            turns.append([*known.input, *known.response["output"]])
            at = known.previous
        size = self.wait(self.store.history_bytes(id, owner))
        assert (size is None) == (at is not None)
        if at is None:
            expected = [item for turn in reversed(turns) for item in turn]
            assert self.wait(self.store.history(id, owner)) == expected

    @rule()
    def sweep(self):
        self.wait(self.store.sweep())


class Talks(Machine):
    """Conversations: contents, limits and owners."""

    LIMITS = StoreLimits(items=4, bytes=200, conversations=3, owner_bytes=450)
    made = Bundle("made")

    @initialize()
    def open(self):
        self.store = SqlStore("sqlite://", limits=self.LIMITS)
        self.talks = self.store.conversations
        self.model: dict[str, tuple[str, list[dict[str, str]]]] = {}
        self.number = 0

    def of(self, owner):
        return [items for other, items in self.model.values() if other == owner]

    @rule(target=made, owner=OWNERS)
    def create(self, owner):
        id = f"c{self.number}"
        self.number += 1
        conversation = StoredConversation(id, owner, time.time(), {})
        try:
            self.wait(self.talks.put(conversation))
        except InvalidRequest:
            assert len(self.of(owner)) == self.LIMITS.conversations
            return multiple()
        assert len(self.of(owner)) < self.LIMITS.conversations
        self.model[id] = (owner, [])
        return id

    @rule(id=made, lengths=st.lists(st.integers(1, 90), max_size=3), answer=st.booleans())
    def append(self, id, lengths, answer):
        items = [{"id": f"{self.number + at}".ljust(n, "x")} for at, n in enumerate(lengths)]
        self.number += len(items)
        add = self.talks.append_answer if answer else self.talks.append
        owner, known = self.model.get(id, ("", []))
        fits = self.fits([*known, *items], owner, items, 2 if answer else 1)
        try:
            self.wait(add(id, items))
        except InvalidRequest:
            assert id in self.model
            assert not fits
        else:
            assert fits or id not in self.model
            known.extend(items)

    def fits(self, after, owner, items, times):
        size = len_of(after)
        limits = self.LIMITS
        total = sum(map(len_of, self.of(owner))) + len_of(items)
        within = len(after) <= times * limits.items and size <= times * limits.bytes
        return within and (times == 2 or total <= limits.owner_bytes)

    @rule(id=made, data=st.data())
    def remove(self, id, data):
        _, known = self.model.get(id, ("", []))
        item = data.draw(st.sampled_from(known))["id"] if known else "none"
        assert self.wait(self.talks.remove(id, item)) == bool(known)
        known[:] = [one for one in known if one["id"] != item]

    @rule(id=made, owner=OWNERS)
    def get(self, id, owner):
        mine = self.model.get(id, ("",))[0] == owner
        assert (self.wait(self.talks.get(id, owner)) is not None) == mine

    @rule(id=made, owner=OWNERS)
    def delete(self, id, owner):
        mine = self.model.get(id, ("",))[0] == owner
        assert self.wait(self.talks.delete(id, owner)) == mine
        if mine:
            del self.model[id]

    @invariant()
    def holds_what_it_should(self):
        if not hasattr(self, "model"):
            return
        for id, (_, items) in self.model.items():
            assert self.wait(self.talks.items(id)) == items
            assert self.wait(self.talks.num_bytes(id)) == len_of(items)
        with self.store._engine.connect() as connection:
            query = "SELECT count(*) FROM eaglegate_conversation_items"
            count = connection.exec_driver_sql(query).scalar()
        assert count == sum(len(items) for _, items in self.model.values())


def len_of(items):
    return sum(len(item["id"]) + len('{"id":""}') for item in items)


class Asking:
    """One request on its way through the admission."""

    def __init__(self, admission, visitor):
        self.stack = ExitStack()
        self.place = self.stack.enter_context(admission.enter(visitor))
        self.task = None

    @property
    def state(self):
        if self.task is None:
            return "rendering"
        if not self.task.done():
            return "waiting"
        if self.task.cancelled():
            return "gone"
        return "refused" if self.task.exception() else "running"


class Admissions(Machine):
    """Bounds hold, nobody is lost, and who may run does."""

    asking = Bundle("asking")
    BOUNDS = Bounds(running=4, queued=5, queued_tokens=100)

    @initialize(classes=st.lists(st.sampled_from(list(Priority)), min_size=2, max_size=2))
    def open(self, classes):
        self.now = 0.0
        self.alarms: list[object] = []
        self.admission = Admission(
            self.BOUNDS, lambda: self.now, later=lambda _, what: self.alarms.append(what) or what
        )
        self.visitors = {
            name: Visitor(name, priority, weight=weight)
            for name, priority, weight in zip(OTHER, classes, (1, 2), strict=True)
        }
        self.all: list[Asking] = []

    @rule(target=asking, name=OWNERS)
    def enter(self, name):
        visitor, queued = self.visitors[name], self.admission.queued
        try:
            self.admission.check(visitor)
            asking = Asking(self.admission, visitor)
        except TooManyRequests as error:
            assert queued == self.BOUNDS.queued
            assert error.retry_after_s >= 1
            rivals = [a for a in self.all if a.place.flow.name != visitor.flow and queues(a)]
            mine = len([a for a in self.all if a.place.flow.name == visitor.flow and queues(a)])
            other = self.visitors[OTHER[name]]
            if rivals and other.priority == visitor.priority:
                assert (mine + 1) / visitor.weight >= len(rivals) / other.weight
            assert not (rivals and other.priority > visitor.priority)
            return multiple()
        self.all.append(asking)
        self.settle()
        return asking

    @rule(asking=asking, sequences=st.integers(1, 6), tokens=st.integers(0, 60))
    def admit(self, asking, sequences, tokens):
        if asking in self.all and asking.task is None:

            async def begin():
                asking.task = asyncio.ensure_future(asking.place.admit(sequences, tokens))

            self.wait(begin())
            self.settle()

    @rule(asking=consumes(asking), served=st.booleans())
    def leave(self, asking, served):
        if asking in self.all:
            self._leave(asking, served)

    def _leave(self, asking, served=True):
        async def end():
            if asking.task is not None and not asking.task.done():
                asking.task.cancel()
                await asyncio.gather(asking.task, return_exceptions=True)
            if served and asking.state == "running":
                asking.place.served()
            asking.stack.close()

        self.all.remove(asking)
        self.wait(end())
        self.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0, 100.0]))
    def pass_time(self, seconds):
        self._pass_time(seconds)

    def _pass_time(self, seconds):
        self.now += seconds
        alarms, self.alarms = self.alarms, []

        async def ring():
            for alarm in alarms:
                alarm()

        self.wait(ring())
        self.settle()

    @invariant()
    def counts_are_right(self):
        if not hasattr(self, "admission"):
            return
        running = [a.place for a in self.all if a.state == "running"]
        waiting = [a.place for a in self.all if a.state == "waiting"]
        admission = self.admission
        assert admission.running == sum(place.sequences for place in running)
        assert admission.running <= self.BOUNDS.running or len(running) == 1
        assert admission.queued == len([a for a in self.all if queues(a)]) <= self.BOUNDS.queued
        assert admission.queued_tokens == sum(place.tokens for place in waiting)
        assert admission.queued_tokens <= self.BOUNDS.queued_tokens
        assert admission.num_inside == len(self.all)

    @invariant()
    def nobody_waits_for_nothing(self):
        if not hasattr(self, "admission") or self.admission.running:
            return
        waiting = [a.place for a in self.all if a.state == "waiting"]
        assert not [place for place in waiting if place.sequences == 1 and self._first(place)]
        assert not waiting or self.alarms, "somebody looks again"

    def _first(self, place):
        return place.flow.waiting[0] is place and len(self.admission._order.by_turn()) == 1

    @precondition(lambda self: len(getattr(self, "all", ())) > 3)
    @rule()
    def everybody_leaves_and_the_rest_runs(self):
        for asking in list(self.all):
            if asking.state in ("running", "refused", "rendering"):
                self._leave(asking)
        for _ in range(20):
            self._pass_time(100.0)
            for asking in list(self.all):
                if asking.state != "waiting":
                    self._leave(asking)
        assert not self.all
        assert self.admission.running == self.admission.queued == 0


def queues(asking):
    place = asking.place
    return place.admitted is None and place.displaced is None and asking.state != "refused"


SECRETS = {"ann": "ann-key-0123456789", "bob": "bob-key-0123456789"}


class Background(Machine):
    """Background responses of two keys: cancelled by several at once, deleted, followed."""

    made = Bundle("made")

    @initialize()
    def open(self):
        self.lab = self.wait(self._lab())
        self.owners: dict[str, str] = {}
        self.followers: list[asyncio.Future] = []

    async def _lab(self):
        lab = Lab()
        lab.gateway.keys = KeyRing(tuple(Key(n, digest_of(k)) for n, k in SECRETS.items()))
        word = tuple(lab.renderer.encode("word", False))

        def script(request):
            yield Step(word)
            yield Pause(60 if request.sampling.max_tokens > 100 else 0)
            yield Step(word, finish=FinishReason.STOP)

        lab.engine.script = script
        return lab

    def ask(self, method, path, owner, body=b"{}"):
        return call(self.lab.app, method, path, body, headers={"x-api-key": SECRETS[owner]})

    @rule(target=made, owner=OWNERS, endless=st.booleans())
    def begin(self, owner, endless):
        most = 150 if endless else 20
        body = b'{"model":"demo","input":"hi","background":true,"max_output_tokens":%d}' % most
        answer = self.wait(self.ask("POST", URL, owner, body))
        assert answer.status == 200
        self.owners[answer.json["id"]] = owner
        return answer.json["id"]

    @rule(rounds=st.sampled_from([0, 1, 3, 10, 50]))
    def time_passes(self, rounds):
        self.settle(rounds)

    @rule(id=made, owner=OWNERS)
    def get(self, id, owner):
        answer = self.wait(self.ask("GET", f"{URL}/{id}", owner))
        assert (answer.status == 200) == (self.owners.get(id) == owner)

    @rule(id=made)
    def follow(self, id):
        if id in self.owners:
            path = f"{URL}/{id}?stream=true"

            async def begin():
                return asyncio.ensure_future(self.ask("GET", path, self.owners[id]))

            self.followers.append(self.wait(begin()))

    @rule(id=made, owners=st.lists(OWNERS, min_size=1, max_size=4), rounds=st.integers(0, 5))
    def cancel(self, id, owners, rounds):
        path = f"{URL}/{id}/cancel"

        async def together():
            tasks = []
            for owner in owners:
                tasks.append(asyncio.ensure_future(self.ask("POST", path, owner)))
                for _ in range(rounds):
                    await asyncio.sleep(0)
            return await asyncio.gather(*tasks)

        for owner, answer in zip(owners, self.wait(together()), strict=True):
            assert (answer.status == 200) == (self.owners.get(id) == owner)
            if answer.status == 200:
                assert answer.json["status"] in ("cancelled", "completed")
                mine = self.wait(self.lab.gateway.store.get(id, f"key:{owner}"))
                assert mine.response["status"] == answer.json["status"]
                assert mine.held_until is None

    @rule(id=made, owner=OWNERS)
    def delete(self, id, owner):
        answer = self.wait(self.ask("DELETE", f"{URL}/{id}", owner))
        assert (answer.status == 200) == (self.owners.get(id) == owner)
        if answer.status == 200:
            del self.owners[id]

    def teardown(self):
        if hasattr(self, "lab"):
            for id, owner in self.owners.items():
                self.wait(self.ask("POST", f"{URL}/{id}/cancel", owner))
            for answer in self.wait(asyncio.gather(*self.followers)):
                ends = [event["type"] for event in said(answer)] if answer.body else []
                assert not ends or ends[0] == "response.created"
            admission = self.lab.gateway.path.admission
            self.settle()
            assert (admission.running, admission.num_inside) == (0, 0)
            assert not self.lab.engine.running
        super().teardown()


@pytest.mark.parametrize("machine", [Quotas, Responses, Talks, Admissions, Background])
def test_no_history_surprises(machine):
    run_state_machine_as_test(machine, settings=FEW)
