"""``include_obfuscation``: frames of one size, with the same events in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.server.http.padding import BLOCK, pad_frames
from tests.streams import read_frames

ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}


@given(st.lists(st.dictionaries(st.text(), st.text(max_size=900), min_size=1), max_size=5))
def test_every_frame_is_a_multiple_of_a_block_and_holds_the_same(rows: list[Any]) -> None:
    frames = b"".join(b"data: " + json.dumps(row).encode() + b"\n\n" for row in rows)
    padded = pad_frames(frames + b": keep-alive\n\ndata: [DONE]\n\n")
    *objects, comment, done, rest = padded.split(b"\n\n")
    assert (comment, done, rest) == (b": keep-alive", b"data: [DONE]", b"")
    assert all((len(frame) + 2) % BLOCK == 0 for frame in objects)
    found = [json.loads(frame[6:]) for frame in objects]
    assert all(row.pop("obfuscation").isascii() for row in found)
    assert found == [{k: v for k, v in row.items() if k != "obfuscation"} for row in rows]


@pytest.mark.parametrize("api", ASKS)
async def test_the_sizes_of_frames_do_not_follow_the_steps(lab, api: str) -> None:
    body = {"model": "demo", "stream": True, "stream_options": {"include_obfuscation": True}}
    sizes = set()
    for cuts in ((1, 1, 1), (4, 2, 4), ()):
        lab.says("Seven times six is forty-two.", cuts)
        answer = (await lab.call("POST", api, body | ASKS[api])).body.decode()
        frames = [frame for frame in answer.split("\n\n") if "data: {" in frame]
        assert all("obfuscation" in row for row in read_frames(answer))
        deltas = [frame for frame in frames if "response." not in frame or ".delta" in frame]
        sizes |= {len(frame.encode()) + 2 for frame in deltas}
    assert sizes == {BLOCK}


async def test_without_the_field_nothing_is_padded(lab) -> None:
    lab.says("Hello.")
    body = {"model": "demo", "stream": True, **ASKS["/v1/chat/completions"]}
    answer = await lab.call("POST", "/v1/chat/completions", body)
    assert b"obfuscation" not in answer.body
