"""SDKs that send a picture, in every API. Their gateway has a scripted engine that reads images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.desk import Desk
from tests.server.conftest import on_a_port
from tests.server.seeing_lab import SeeingLab, picture

SCRIPTS = Path(__file__).parent / "scripts"
CLIENTS = [pytest.param(name, marks=pytest.mark.client(name)) for name in ("ai6", "ai7")]
WIDTH = 40


@pytest.fixture
def lab() -> SeeingLab:
    lab = SeeingLab()
    lab.says("A cat.")
    return lab


@pytest.fixture
def url(lab: SeeingLab) -> Iterator[str]:
    with on_a_port(lab.app) as address:
        yield address


def send(desk: Desk, lab: SeeingLab, client: str, script: str, *arguments: str) -> None:
    """Run a script that sends a picture, and check what the engine and the client got."""
    file = desk.project / "picture.png"
    file.write_bytes(picture(WIDTH))
    ran = desk.run_script(client, SCRIPTS / script, *arguments, str(file))
    assert ran.code == 0, ran
    (request,) = lab.engine.requests
    assert lab.prompt == "user: What is this?<pad>;"
    assert [image.data for image in request.images] == [picture(WIDTH)]
    assert json.loads(ran.out) == {"text": "A cat.", "tokens": request.num_prompt}


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "anthropic", "compatible"])
@pytest.mark.parametrize("client", CLIENTS)
def test_ai_sdk(desk, lab, url, client, provider):
    """sends a picture through four providers"""
    send(desk, lab, client, "ai_sdk_images.mjs", provider, url)


@pytest.mark.client("openai")
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_sdk(desk, lab, url, api):
    """sends a picture by chat and by responses"""
    send(desk, lab, "openai", "sdk_images.py", api, url)


@pytest.mark.client("anthropic")
def test_anthropic_sdk(desk, lab, url):
    """sends a picture as a file, which the SDK encodes"""
    send(desk, lab, "anthropic", "sdk_images.py", "messages", url)
