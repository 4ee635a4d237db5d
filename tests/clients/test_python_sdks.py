"""Python frameworks, each in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.brain import IDLE, Seen, call
from tests.clients.desk import Desk

SCRIPTS = Path(__file__).parent / "scripts"
REPORT = {"city": "Oslo", "degrees": 12}


def play(desk: Desk) -> None:
    plays = desk.brain.plays
    plays["weather"] = [call("weather", city="Oslo"), "It rains in Oslo."]
    plays["thanks"] = ["You are welcome."]
    plays["report"] = [report]
    plays["call"] = [call(".*", **REPORT)]
    plays["text"] = [json.dumps(REPORT)]


def report(seen: Seen) -> Any:
    """By a tool where one is offered."""
    return call(".*", **REPORT) if seen.tools else json.dumps(REPORT)


def found_by(desk: Desk, client: str, script: str, *arguments: str) -> dict[str, Any]:
    play(desk)
    ran = desk.run_script(client, SCRIPTS / script, *arguments)
    assert ran.code == 0, ran
    return json.loads(ran.out.splitlines()[-1])


@pytest.mark.client("pydantic-ai")
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_pydantic_ai(desk, api):
    """runs a tool loop whole and streamed, a second turn, a typed result"""
    found = found_by(desk, "pydantic-ai", "pydantic_ai_loop.py", api, desk.url)
    assert found["whole"] == found["streamed"] == "It rains in Oslo."
    assert found["cities"] == ["Oslo", "Oslo"]
    assert found["second"] == "You are welcome."
    assert found["typed"] == REPORT


@pytest.mark.client("instructor")
def test_instructor(desk):
    """makes typed results by tools, JSON and JSON schema, whole and partial, and by messages"""
    found = found_by(desk, "instructor", "instructor_models.py", desk.url)
    assert len(found) == 4
    for made in found.values():
        assert all(one == REPORT for one in made), found


@pytest.mark.client("litellm")
def test_litellm_sdk(desk):
    """calls a tool through its OpenAI, vLLM and Anthropic providers; text and responses"""
    found = found_by(desk, "litellm", "litellm_calls.py", desk.url)
    for model in ("openai/demo", "hosted_vllm/demo", "anthropic/demo"):
        assert found[model] == {
            "call": {"city": "Oslo"},
            "whole": "It rains in Oslo.",
            "streamed": "It rains in Oslo.",
            "tokens": True,
        }
    assert found["text"] == IDLE
    assert found["response"] == "You are welcome."


@pytest.mark.client("llama-index")
def test_llama_index(desk):
    """chats whole and streamed, completes, runs a tool agent, makes a typed result"""
    found = found_by(desk, "llama-index", "llama_index_loop.py", desk.url)
    assert found["whole"] == found["streamed"] == "You are welcome."
    assert found["agent"] == "It rains in Oslo."
    assert found["typed"] == REPORT
    assert found["completion"] == IDLE
