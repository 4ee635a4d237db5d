"""One key can neither read, list, use, change nor delete another key's stored objects."""

from __future__ import annotations

from typing import Any

import pytest

from eaglegate.engine.scripted import Pause

SECRET = "the password is swordfish"


class Two:
    """A gateway with two keys; ``ann`` owns what is stored."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        lab.admit("ann", "bob")
        lab.says("Noted.")

    async def ask(self, who: str, method: str, path: str, body: Any = b"") -> Any:
        return await self.lab.call(method, path, body, key=who)

    async def make(self, path: str, **body: Any) -> str:
        """Ann's; its id."""
        answer = await self.ask("ann", "POST", path, body)
        assert answer.status == 200, answer.body
        return str(answer.json["id"])

    async def refuse(self, method: str, path: str, body: Any = b"", status: int = 404) -> None:
        """Bob is told what he would be told of an id that nobody has."""
        answer = await self.ask("bob", method, path, body)
        assert answer.status == status, (method, path, answer.body)
        assert SECRET.encode() not in answer.body


@pytest.fixture
def two(lab):
    return Two(lab)


def message(text: str = SECRET) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


async def test_responses_are_their_key_s_own(two):
    id = await two.make("/v1/responses", model="demo", input=SECRET)
    path = f"/v1/responses/{id}"
    await two.refuse("GET", path)
    await two.refuse("GET", f"{path}?stream=true")
    await two.refuse("GET", f"{path}/input_items")
    await two.refuse("POST", f"{path}/cancel")
    await two.refuse("DELETE", path)
    body = {"model": "demo", "input": "what was it?", "previous_response_id": id}
    await two.refuse("POST", "/v1/responses", body)
    assert len(two.lab.engine.requests) == 1, "the engine saw Ann's alone"
    assert (await two.ask("ann", "GET", path)).status == 200
    assert SECRET.encode() in (await two.ask("ann", "GET", f"{path}/input_items")).body
    assert (await two.ask("ann", "POST", "/v1/responses", body)).status == 200
    assert (await two.ask("ann", "DELETE", path)).json["deleted"]


async def test_background_responses_are_their_key_s_own(two):
    two.lab.engine.script = [Pause(60)]
    id = await two.make("/v1/responses", model="demo", input=SECRET, background=True)
    path = f"/v1/responses/{id}"
    await two.refuse("GET", path)
    await two.refuse("GET", f"{path}?stream=true")
    await two.refuse("GET", f"{path}/input_items")
    await two.refuse("POST", f"{path}/cancel")
    await two.refuse("DELETE", path)
    running = (await two.ask("ann", "GET", path)).json
    assert running["status"] in ("queued", "in_progress")
    assert (await two.ask("ann", "POST", f"{path}/cancel")).json["status"] == "cancelled"


async def test_conversations_are_their_key_s_own(two):
    id = await two.make("/v1/conversations", items=[message()], metadata={"about": SECRET})
    path = f"/v1/conversations/{id}"
    await two.refuse("GET", path)
    await two.refuse("POST", path, {"metadata": {"about": "nothing"}})
    await two.refuse("DELETE", path)
    await two.refuse("POST", "/v1/responses", {"model": "demo", "input": "?", "conversation": id})
    assert not two.lab.engine.requests
    assert (await two.ask("ann", "GET", path)).json["metadata"] == {"about": SECRET}
    assert (await two.ask("ann", "DELETE", path)).json["deleted"]


async def test_items_of_conversations_are_their_key_s_own(two):
    id = await two.make("/v1/conversations", items=[message()])
    path = f"/v1/conversations/{id}/items"
    (item,) = (await two.ask("ann", "GET", path)).json["data"]
    await two.refuse("GET", path)
    await two.refuse("POST", path, {"items": [message("and more")]})
    await two.refuse("GET", f"{path}/{item['id']}")
    await two.refuse("DELETE", f"{path}/{item['id']}")
    own = (await two.ask("bob", "POST", "/v1/conversations", {})).json["id"]
    await two.refuse("GET", f"/v1/conversations/{own}/items/{item['id']}")
    await two.refuse("DELETE", f"/v1/conversations/{own}/items/{item['id']}")
    assert (await two.ask("ann", "GET", path)).json["data"] == [item]


@pytest.mark.parametrize("stored_in", ["response", "conversation"])
async def test_items_are_found_by_their_key_alone(two, stored_in):
    """Another key's reference to an item is refused, whichever store has the item."""
    if stored_in == "response":
        id = await two.make("/v1/responses", model="demo", input=[message()])
        path = f"/v1/responses/{id}/input_items"
    else:
        id = await two.make("/v1/conversations", items=[message()])
        path = f"/v1/conversations/{id}/items"
    (item,) = (await two.ask("ann", "GET", path)).json["data"]
    reference = [{"type": "item_reference", "id": item["id"]}]
    asked = len(two.lab.engine.requests)
    body = {"model": "demo", "input": [*reference, message("what was it?")]}
    await two.refuse("POST", "/v1/responses", body)
    await two.refuse("POST", "/v1/conversations", {"items": reference})
    assert len(two.lab.engine.requests) == asked
    assert (await two.ask("ann", "POST", "/v1/responses", body)).status == 200
    assert SECRET in two.lab.renderer.decode(two.lab.engine.requests[-1].prompt)


async def test_encrypted_reasoning_is_read_by_its_key_alone(two):
    two.lab.says(f"<think>{SECRET}</think>Yes.")
    body = {"model": "demo", "input": "?", "store": False}
    body |= {"include": ["reasoning.encrypted_content"]}
    made = (await two.ask("ann", "POST", "/v1/responses", body)).json["output"]
    thought = next(item for item in made if item["type"] == "reasoning")
    assert SECRET not in thought["encrypted_content"]
    again = {"model": "demo", "store": False}
    again |= {"input": [{key: thought[key] for key in ("type", "id", "encrypted_content")}
                        | {"summary": []}, message("go on")]}  # fmt: skip
    await two.refuse("POST", "/v1/responses", again, status=400)
    assert (await two.ask("ann", "POST", "/v1/responses", again)).status == 200
