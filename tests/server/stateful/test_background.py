"""Random histories of background responses of two keys."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, rule, run_state_machine_as_test

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.keys import KeyRing, hash_key
from eaglegate.text.events import FinishReason
from tests.server.apis.responses.test_responses import URL, said
from tests.server.conftest import Lab, call
from tests.server.stateful.machine import FEW, OWNERS, Machine

pytestmark = pytest.mark.thorough

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
        lab.gateway.keys = KeyRing(tuple(ApiKey(n, hash_key(k)) for n, k in SECRETS.items()))
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
            admission = self.lab.gateway.pipeline.admission
            self.settle()
            assert (admission.running, admission.num_in_flight) == (0, 0)
            assert not self.lab.engine.running
        super().teardown()


@pytest.mark.parametrize("machine", [Background])
def test_no_history_surprises(machine):
    run_state_machine_as_test(machine, settings=FEW)
