"""``--vllm-parser-fallback``: a format that the checkpoint describes, through the whole stack."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.conftest import RunningGateway, serving
from tests.e2e.test_tool_calls import PROMPTS, ROOT, streamed, whole

pytestmark = pytest.mark.slow

CALLS = {
    "open": "<tool_call>",
    "close": "</tool_call>",
    "content": "json",
    "repeats": True,
    "transform": {"type": "function", "function": "{content}"},
}
TEMPLATE = {
    "defaults": {"role": "assistant"},
    "fields": {"content": {"close": ["<|im_end|>"], "content": "text"}, "tool_calls": CALLS},
    "start_anchor": "<|im_start|>assistant\n",
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[RunningGateway]:
    """The demo's target with a template of its answers, which vLLM's parser ``hf`` reads."""
    folder = tmp_path_factory.mktemp("described") / "target"
    shutil.copytree(ROOT / "engine/demo/target", folder)
    settings: Path = folder / "tokenizer_config.json"
    described = json.loads(settings.read_text("utf-8")) | {"response_template": TEMPLATE}
    settings.write_text(json.dumps(described), "utf-8")
    arguments = ["--model", str(folder), "--served-model-name", "demo"]
    arguments += ["--tool-call-parser", "hf", "--vllm-parser-fallback", "--enforce-eager"]
    with serving(folder.parent / "serve.log", arguments) as running:
        yield running


def test_vllm_s_parser_reads_the_answers(gateway):
    client = OpenAI(base_url=f"{gateway.url}/v1", api_key="none")
    called = 0
    for prompt in PROMPTS[:3]:
        plain = whole(client, prompt, 0)
        assert streamed(client, prompt, 0) == plain
        called += len(plain[1])
        for _, arguments in plain[1]:
            assert isinstance(json.loads(arguments), dict)
    assert called


def test_the_operator_learns_of_it(gateway):
    said = gateway.banner + gateway.log.read_text("utf-8")
    assert "no parser here for hf: vLLM's own parsers read all answers" in said
    assert gateway.metric("eaglegate_parser_info", parser="hf", source="vllm") == 1
