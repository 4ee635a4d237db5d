"""The clients and the versions that CI runs. Newer ones: ``make clients-newest``."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import Literal

NEWEST = os.environ.get("CLIENT_TESTS_VERSIONS") == "newest"
NODE = "24.21.0"
"""Most of the npm clients want Node 22 or later, which distributions do not have yet."""
UV = "0.13.9"
"""Version that is installed where no uv is."""
EXACT = re.compile(r"==(?=\d)|(?<=[\w-])@(?=\d)")


@dataclass(frozen=True)
class Client:
    """One installation; its first package is the client, the others come with it."""

    name: str
    title: str
    kind: Literal["npm", "python", "here"]
    packages: tuple[str, ...] = ()
    origin: str = "as locked"
    """Shown in place of a version, for a client that is here already."""
    lean: bool = False
    """Install less. npm leaves out optional packages and install scripts (promptfoo has 1.7 GB of
    optional packages); pip leaves out dependencies."""

    @property
    def version(self) -> str:
        return EXACT.split(self.packages[0])[1] if self.packages else self.origin

    @property
    def package(self) -> str:
        """The name of the client's own package."""
        return EXACT.split(self.packages[0])[0].partition("[")[0]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The packages to install: the pins, or the newest of the same packages."""
        return self.packages if not NEWEST else tuple(map(self._newest, self.packages))

    def _newest(self, package: str) -> str:
        name = EXACT.split(package)[0]
        return f"{name}@latest" if self.kind == "npm" else name


def npm(name: str, title: str, *packages: str, lean: bool = False) -> Client:
    return Client(name, title, "npm", packages, lean=lean)


def python(name: str, title: str, *packages: str, lean: bool = False) -> Client:
    return Client(name, title, "python", packages, lean=lean)


TORCH = "torch==2.13.0+cpu"
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
LIBSQL = f"linux-{MACHINE}-gnu" if sys.platform == "linux" else f"{sys.platform}-{MACHINE}"
"""An optional package that promptfoo does not start without."""
CLIENTS = (
    npm("codex", "Codex CLI", "@openai/codex@0.169.0"),
    npm("claude", "Claude Code", "@anthropic-ai/claude-code@2.1.332"),
    npm("opencode", "opencode", "opencode-ai@1.18.33"),
    npm("qwen", "Qwen Code", "@qwen-code/qwen-code@0.24.4"),
    npm("cline", "Cline CLI", "cline@3.0.65"),
    npm("copilot", "Copilot CLI", "@github/copilot@1.0.102"),
    npm(
        "ai6",
        "AI SDK 6",
        "ai@6.0.326",
        "@ai-sdk/openai@3.0.141",
        "@ai-sdk/anthropic@3.0.138",
        "@ai-sdk/openai-compatible@2.0.87",
        "zod@4.6.7",
    ),
    npm(
        "ai7",
        "AI SDK 7",
        "ai@7.0.173",
        "@ai-sdk/openai@4.0.118",
        "@ai-sdk/anthropic@4.0.105",
        "@ai-sdk/openai-compatible@3.0.92",
        "zod@4.6.7",
    ),
    npm("agents-js", "OpenAI Agents JS", "@openai/agents@0.20.0", "zod@4.6.7"),
    npm("anthropic-js", "Anthropic SDK (Node)", "@anthropic-ai/sdk@1.13.0"),
    npm("openai-js", "OpenAI SDK (Node)", "openai@7.57.0"),
    npm("promptfoo", "promptfoo", "promptfoo@0.123.1", f"@libsql/{LIBSQL}@0.5.29", lean=True),
    python("openai", "OpenAI SDK (Python)", "openai==3.57.0"),
    python("anthropic", "Anthropic SDK (Python)", "anthropic==2.13.0"),
    python("pydantic-ai", "Pydantic AI", "pydantic-ai-slim[openai,anthropic]==2.68.0"),
    python("instructor", "Instructor", "instructor[anthropic]==1.17.0"),
    python("litellm", "LiteLLM", "litellm[proxy]==1.108.7"),
    python("llama-index", "LlamaIndex", "llama-index-llms-openai-like==0.8.1"),
    python("guidellm", "GuideLLM", "guidellm==0.8.1", TORCH),
    python("aiperf", "AIPerf", "aiperf==0.13.0"),
    python("lm-eval", "lm-evaluation-harness", "lm-eval[api]==0.4.13", "transformers==5.23.0"),
    python("inspect", "Inspect", "inspect-ai==0.3.285", "openai==3.57.0", "anthropic==2.13.0"),
    Client("vllm-bench", "vllm bench serve", "here"),
    Client("curl", "curl", "here", origin="the system's"),
    Client("java", "java.net.http", "here", origin="the system's"),
)
BY_NAME = {client.name: client for client in CLIENTS}
