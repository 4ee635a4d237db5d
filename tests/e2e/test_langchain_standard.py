"""LangChain's own standard tests, run on ChatOpenAI against the demo model."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

pytestmark = pytest.mark.slow


class TestChatOpenAI(ChatModelIntegrationTests):
    """Tool calling, streaming, structured output, usage: what a model that reads text can do."""

    @pytest.fixture(autouse=True)
    def _gateway(self, demo_gateway) -> None:
        type(self).url = f"{demo_gateway.url}/v1"

    url = ""

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
            "temperature": 0,
            "max_tokens": 256,
            "stream_usage": True,
            "http_async_client": httpx.AsyncClient(),
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True
