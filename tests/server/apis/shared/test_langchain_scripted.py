"""LangChain's own standard tests on ChatOpenAI, with an engine that does as it is told.

tests/e2e/test_langchain_standard.py runs the same tests on the demo model; these need no model, and
say which side is at fault where the others fail.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from eaglegate.engine.scripted import steps
from eaglegate.engine.types import EngineRequest

pytestmark = pytest.mark.slow

JOKE = {"setup": "Why?", "punchline": "Because."}


def example(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Something that matches ``schema``."""
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    if "anyOf" in schema:
        return example(schema["anyOf"][0], root)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            inner = schema.get("properties", {})
            return {name: example(part, root) for name, part in inner.items()}
        case "integer" | "number":
            return 3
        case "boolean":
            return True
        case "array":
            return []
    return "San Francisco 你好啊集团 こんにちは株式会社"


class Obliging:
    """Calls the first tool that may be called, fills in the schema asked for, or says hello."""

    def __init__(self, lab) -> None:
        self.lab = lab

    def __call__(self, request: EngineRequest):
        ids = self.lab.renderer.encode(self.answer(request) + "<|im_end|>", False)
        return steps(ids, [1, 3, 2, 4] * 20)

    def answer(self, request: EngineRequest) -> str:
        seen = self.lab.renderer.seen[-1]
        wanted = self.wanted(request)
        called = seen["tools"] and seen["messages"][-1]["role"] != "tool"
        if called and (wanted is None or wanted["type"] != "json_schema"):
            return self.call(seen["tools"], wanted)
        if wanted is None:
            return "<think>\nhm\n</think>\n\nHello there."
        schema = wanted["json_schema"]
        return json.dumps(example(schema, schema) if "properties" in schema else JOKE)

    def wanted(self, request: EngineRequest) -> dict[str, Any] | None:
        """The last part of the grammar, behind the reasoning."""
        if request.constraint is None:
            return None
        whole = json.loads(request.constraint.value)["format"]
        return whole["elements"][-1] if whole["type"] == "sequence" else whole

    def call(self, tools: Any, wanted: dict[str, Any] | None) -> str:
        tags = (wanted or {}).get("tags", ())
        begins = [tag["begin"] for tag in tags]
        functions = [tool["function"] for tool in tools]
        allowed = [f for f in functions if not begins or any(f["name"] in b for b in begins)]
        function = allowed[0]
        schema = function.get("parameters") or {}
        called = {"name": function["name"], "arguments": example(schema, schema)}
        return f"<tool_call>\n{json.dumps(called, ensure_ascii=False)}\n</tool_call>"


class TestChatOpenAI(ChatModelIntegrationTests):
    """Every test that needs no other input than text."""

    url = ""

    @pytest.fixture(autouse=True)
    def _gateway(self, lab, url) -> None:
        pipeline = lab.gateway.pipeline
        info = dataclasses.replace(pipeline.info, max_model_len=4096)
        lab.gateway.pipeline = dataclasses.replace(pipeline, info=info)
        lab.engine.script = Obliging(lab)
        type(self).url = f"{url}/v1"

    @pytest.fixture
    def model(self, _gateway, request) -> BaseChatModel:
        extra = getattr(request, "param", None) or {}
        params = {**self.standard_chat_model_params, **self.chat_model_params, **extra}
        return self.chat_model_class(**params)

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """A client of its own for each test: the cached one belongs to another event loop."""
        return {
            "model": "demo",
            "base_url": self.url,
            "api_key": "none",
            "stream_usage": True,
            "http_async_client": httpx.AsyncClient(),
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "alias"
