"""Answers whose thinking the prompt has opened, for every reasoning format, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from eaglegate.text.parsing.registry import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    reasoning_format,
    thinking_names,
    tool_format,
)
from eaglegate.text.rendering.encoding import TextEncoder
from tests.server.conftest import Lab, PlainRenderer

CHANNELS = {
    "inkling": (
        "<|message_model|><|content_thinking|>",
        "<|end_message|><|message_model|><|content_text|>",
        "<|end_message|>",
    ),
    "kimi_k3": (
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
        "<|close|>response<|sep|>",
    ),
    "muse": (
        "<|start|>assistant to=self<|message|>",
        "<|eom|><|start|>assistant to=user<|message|>",
        "<|eot|>",
    ),
    "openai_gptoss": (
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|return|>",
    ),
}
CHANNELS["muse_glimmer"] = CHANNELS["muse"]
TOOLS = {"inkling": "inkling", "kimi_k3": "kimi_k3", "muse": "muse", "openai_gptoss": "openai"}


class OpeningRenderer(PlainRenderer):
    """Renders prompts that end with ``opening``; ``markers`` are tokens."""

    def __init__(self, opening: str, markers: tuple[str, ...]) -> None:
        super().__init__()
        self.opening = opening
        self.tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokens = [AddedToken(text, special=True) for text in markers if " " not in text]
        self.tokenizer.add_special_tokens(tokens)
        self.encoder = TextEncoder(self.tokenizer)

    def render_chat(self, messages, tools, **options):
        ids = super().render_chat(messages, tools, **options)
        return [*ids, *self.encode(f"\nassistant: {self.opening}", False)]


def written(name: str) -> tuple[str, str, str]:
    """The text that opens the thinking in a prompt, the text before the answer, and the text behind
    it."""
    if name in CHANNELS:
        return CHANNELS[name]
    form = reasoning_format(name)
    opening = form.starts[0] + (f"{form.label}\n" if form.label else "")
    return opening, form.ends[0], ""


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", thinking_names())
async def test_thinking_that_the_prompt_opens(name, streamed):
    opening, between, end = written(name)
    lab = Lab(
        renderer=OpeningRenderer(opening, reasoning_format(name).markers),
        tool_parser=None,
        reasoning_parser=name,
    )
    await check(lab, f"Let me see.{between}It rains.{end}", streamed)


@pytest.mark.parametrize("name", TOOLS)
async def test_a_tool_parser_that_reads_whole_answers_alone(name):
    opening, between, end = written(name)
    form = tool_format(TOOLS[name])
    lab = Lab(
        renderer=OpeningRenderer(opening, form.markers),
        tool_parser=TOOLS[name],
        reasoning_parser=None,
    )
    tool = {"type": "function", "function": {"name": "ping"}}
    await check(lab, f"Let me see.{between}It rains.{end}", streamed=False, tools=[tool])


async def check(lab: Lab, text: str, streamed: bool, **fields: Any) -> None:
    lab.says(text, [3, 1, 1])
    answer = await lab.chat(stream=streamed, **fields)
    assert answer.status == 200, answer.body
    if streamed:
        deltas = [chunk["choices"][0]["delta"] for chunk in answer.chunks if chunk["choices"]]
        reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        content = "".join(delta.get("content") or "" for delta in deltas)
    else:
        message = answer.json["choices"][0]["message"]
        reasoning, content = message.get("reasoning_content"), message["content"]
    if "append_think" in str(lab.reasoning_parser):
        assert content == "<think>Let me see.</think>It rains."
    else:
        assert (reasoning, content) == ("Let me see.", "It rains.")


def test_every_format_that_reads_whole_answers_is_tried():
    names = [name for name in thinking_names() if reasoning_format(name).channels]
    assert set(names) == set(CHANNELS)
    assert set(TOOLS) <= REASONING_PARSERS.keys()
    assert set(TOOLS.values()) <= TOOL_PARSERS.keys()
