"""Python frameworks, each in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.brain import IDLE, Seen, call
from tests.clients.desk import Desk
from tests.workers import free_port

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
    """A report: a tool call if a tool is offered, else JSON text."""
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


PROXY = """\
model_list:
  - model_name: demo
    litellm_params: {{model: hosted_vllm/demo, api_base: "{url}/v1", api_key: none}}
  - model_name: demo-openai
    litellm_params: {{model: openai/demo, api_base: "{url}/v1", api_key: none}}
  - model_name: demo-anthropic
    litellm_params: {{model: anthropic/demo, api_base: "{url}", api_key: none}}
"""


@pytest.mark.client("litellm")
def test_litellm_proxy(desk):
    """is a proxy for chat, responses and messages by its vLLM, OpenAI and Anthropic providers"""
    config = desk.write("config.yaml", PROXY.format(url=desk.url))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ("litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    local = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with desk.serve("litellm", *command, ready=f"{url}/health/liveliness", env=local):
        found = found_by(desk, "litellm", "litellm_proxy.py", url)
    for model in ("demo", "demo-anthropic"):
        assert found[model]["call"] == {"city": "Oslo"}
        assert found[model]["whole"] == found[model]["streamed"] == "It rains in Oslo."
        assert found[model]["tokens"] > 0
    assert found["messages"] == [{"city": "Oslo"}] * 2
    assert found["response"] == "You are welcome."
    assert found["models"] == ["demo", "demo-anthropic", "demo-openai"]


@pytest.mark.client("llama-index")
def test_llama_index(desk):
    """chats whole and streamed, completes, runs a tool agent, makes a typed result"""
    found = found_by(desk, "llama-index", "llama_index_loop.py", desk.url)
    assert found["whole"] == found["streamed"] == "You are welcome."
    assert found["agent"] == "It rains in Oslo."
    assert found["typed"] == REPORT
    assert found["completion"] == IDLE
