"""A digest replaces the images of captured requests, unless the operator wants their bytes."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from eaglegate.features.capture.images import hash_image, may_have_images, replace_images
from eaglegate.features.capture.settings import CaptureSettings
from eaglegate.server.errors import ConfigError
from tests.features.capture.test_served import bench, says
from tests.server.conftest import call
from tests.server.seeing_lab import SeeingLab, picture, url

DIGESTS = [hashlib.sha256(picture(width)).hexdigest() for width in (20, 30)]
SOURCE = {"type": "base64", "media_type": "image/png"}
SOURCE["data"] = base64.b64encode(picture(30)).decode()
TEXT = {"type": "text", "text": "Look"}
INPUT_PARTS = [
    {"type": "input_image", "image_url": url(20)},
    {"type": "input_text", "text": "Look"},
    {"type": "input_image", "image_url": url(30), "detail": "low"},
]
BLOCKS = [
    {"type": "image", "source": {"type": "url", "url": url(20)}},
    TEXT,
    {"type": "image", "source": SOURCE},
]


def make_chat(url_1: Any, url_2: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": image} for image in (url_1, url_2)]
    return {"messages": [{"role": "user", "content": [parts[0], TEXT, parts[1]]}]}


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", make_chat({"url": url(20)}, url(30))),
    "responses": (
        "/v1/responses",
        {"input": [{"role": "user", "content": INPUT_PARTS}]},
    ),
    "messages": (
        "/v1/messages",
        {"max_tokens": 99, "messages": [{"role": "user", "content": BLOCKS}]},
    ),
}


@pytest.fixture
def lab() -> SeeingLab:
    return SeeingLab()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": url(20)}, "source": {"url": "http://a.example"}},
        {"type": "input_image", "image_url": url(20), "source": {"data": "AAAA"}},
        BLOCKS[0] | {"image_url": "http://a.example"},
    ],
)
def test_members_of_other_apis_do_not_hide_an_image(part):
    (replaced,) = replace_images([part])
    assert replaced["text"] == f"[image sha256:{DIGESTS[0]}]"


async def capture(lab: SeeingLab, folder: Path, api: str, **options: Any) -> tuple[Any, bytes]:
    """Capture one request. Returns its record, and everything that was written."""
    path, body = REQUESTS[api]
    says(lab, "A cat.")
    with bench(lab, folder, **options) as found:
        answer = await found.post(path, {"model": "demo", **body})
        assert answer.status == 200, answer.body
        (record,) = found.records()
    return record, found.written


@pytest.mark.parametrize("api", REQUESTS)
async def test_a_digest_replaces_an_image(lab, tmp_path, api) -> None:
    record, written = await capture(lab, tmp_path, api)
    assert b"iVBOR" not in written
    (prompt,) = record.prompts
    assert prompt.images == tuple(DIGESTS)
    assert prompt.token_ids is None
    assert list(record.trajectories()) == []
    assert prompt.tokens == lab.engine.requests[-1].expanded_length > 50
    body = record.request_body()
    items = body["input" if api == "responses" else "messages"]
    kind = "input_text" if api == "responses" else "text"
    assert items[0]["content"] == [
        {"type": kind, "text": f"[image sha256:{DIGESTS[0]}]"},
        {"type": kind, "text": "Look"},
        {"type": kind, "text": f"[image sha256:{DIGESTS[1]}]"},
    ]
    again = await call(lab.app, "POST", record.path, orjson.dumps(body))
    assert again.status == 200


@pytest.mark.parametrize("api", REQUESTS)
async def test_an_operator_may_keep_the_bytes(lab, tmp_path, api) -> None:
    record, _ = await capture(lab, tmp_path, api, keeps_images=True)
    body = REQUESTS[api][1]
    captured = record.request_body()
    assert {name: captured[name] for name in body} == body
    assert record.prompts[0].images == tuple(DIGESTS)


@pytest.mark.parametrize("api", REQUESTS)
async def test_mode_hashes_keeps_salted_digests(lab, tmp_path, api) -> None:
    record, written = await capture(lab, tmp_path, api, hashes=True)
    (prompt,) = record.prompts
    assert len(set(prompt.images)) == 2
    assert not {*prompt.images} & {*DIGESTS}
    assert prompt.blocks is None
    assert record.input_length == prompt.tokens == lab.engine.requests[-1].expanded_length
    for word in ("iVBOR", *DIGESTS, "Look"):
        assert word.encode() not in written


def test_an_escape_hides_no_image() -> None:
    body = orjson.dumps(REQUESTS["chat"][1]).replace(b"image", b"\\u0069mage")
    assert may_have_images(body)
    assert b"iVBOR" not in orjson.dumps(replace_images(orjson.loads(body)))
    assert not may_have_images(b'{"prompt": "Hello"}')


def test_other_values_stay() -> None:
    body = make_chat({"url": "https://images.example/cat.png"}, None)
    body |= {"n": 1, "stop": None, "tools": [{"type": "image", "size": 3}], "type": ["image"]}
    assert replace_images(body) == body


def test_a_damaged_url_has_a_digest() -> None:
    assert len(hash_image("data:image/png;base64,\ud800")) == 64


def test_images_need_the_mode_full(tmp_path) -> None:
    with pytest.raises(ConfigError, match="leave out --capture-images"):
        CaptureSettings(capture=str(tmp_path), capture_mode="hashes", capture_images=True)
