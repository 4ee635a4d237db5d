"""Every gateway that benchmarks/layers.py compares answers its request."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from benchmarks.layers import write_request
from benchmarks.variants import TABLE, Variant, make_app
from server.generation import generate

ENDS = ("data: [DONE]", "event: response.completed", "event: response.incomplete")


@pytest.mark.parametrize("variant", TABLE, ids=lambda variant: variant.name)
async def test_every_variant_answers(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "Account", generate.Account)  # a variant may exchange it
    head, _, body = write_request(variant, "Tell me a story.").partition(b"\r\n\r\n")
    lines = (line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    transport = httpx.ASGITransport(make_app(variant, tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post(variant.path, content=body, headers=dict(lines))
    assert answer.status_code == 200, answer.text
    assert any(end in answer.text for end in ENDS)
