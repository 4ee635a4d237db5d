"""Random histories of stored responses and conversations of two keys."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from eaglegate.server.errors import InvalidRequest
from eaglegate.server.store.base import StoredConversation, StoredResponse, StoreLimits
from eaglegate.server.store.sql import SqlResponseStore
from tests.server.stateful.machine import FEW, OWNERS, Machine

pytestmark = pytest.mark.thorough


class Responses(Machine):
    """One owner can neither read, continue, settle nor delete the other's responses."""

    stored = Bundle("stored")

    @initialize()
    def open(self):
        self.store = SqlResponseStore("sqlite://")
        self.model: dict[str, StoredResponse] = {}
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
        made = StoredResponse(
            id, owner, time.time(), output, [{"id": f"i{number}"}], previous, until
        )
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
        end = StoredResponse(id, owner, 1e10, {"status": "cancelled", "output": []}, [], None)
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
        self.store = SqlResponseStore("sqlite://", limits=self.LIMITS)
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


@pytest.mark.parametrize("machine", [Responses, Talks])
def test_no_history_surprises(machine):
    run_state_machine_as_test(machine, settings=FEW)
