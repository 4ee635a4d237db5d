"""Calls as the models' own chat templates write them, from packages of the registry.

A template writes a conversation whose last message has thinking, content and calls; the answer is
the text behind the prompt. ``Own.write`` leaves out the end-of-turn marker, as an engine does.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from eaglegate.text.parsing.registry import reasoning_format
from eaglegate.text.rendering.template import ChatTemplate
from tests.clients.install import install
from tests.clients.pins import python
from tests.text.parsing.golden_corpus import Format, formats
from tests.text.parsing.round_trip_writers import Call

PACKAGES = {
    "axolotl": python("axolotl", "Axolotl's chat templates", "axolotl==0.19.0", lean=True),
    "mlx_vlm": python("mlx-vlm", "MLX-VLM's chat templates", "mlx-vlm==0.7.10", lean=True),
    "trl": python("trl", "TRL's chat templates", "trl==1.16.0", lean=True),
    "xinference": python(
        "xinference", "Xinference's chat templates", "xinference==4.1.0", lean=True
    ),
}

Message = dict[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message], bool], str]
"""Messages, tools, and whether the text ends where an answer begins."""

ENDS = (
    *("<|im_end|>", "<｜end▁of▁sentence｜>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "</s>"),
    *("[e~[", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<seed:eos>", "<|eom|>"),
    *("<|tool_response>", "<|end_of_msg|>", "<|content_model_end_sampling|>"),
)
"""Markers that end a turn."""


@dataclass(frozen=True)
class Answer:
    """The text of an answer, what it says, and whether its prompt has opened the thinking."""

    text: str
    content: str
    reasoning: str
    thinks: bool


@dataclass(frozen=True)
class Own:
    """A template, and how its answers are read."""

    render: Render
    format: Format
    takes: frozenset[str] = frozenset()
    """Options: "json" where arguments are given as JSON, "one" where a message has one call at
    most, "calls" where nothing stands beside calls, "no thinking" where the prompt closes it."""

    def write(self, content: str, reasoning: str, entry: Any) -> Answer:
        """Render the entry's calls. Texts that the template leaves out are none of the answer."""
        content = "" if "calls" in self.takes else content
        reasoning = "" if {"calls", "no thinking"} & self.takes else reasoning
        offered = [{"type": "function", "function": dict(tool)} for tool in entry.tools]
        asked: list[Message] = [{"role": "user", "content": "Hi"}]
        answer = {
            "role": "assistant",
            "content": content,
            **dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning),
            "tool_calls": [self._call(at, call) for at, call in enumerate(entry.calls)],
        }
        whole = self.render([*asked, answer], offered, False)
        prompt = self.render(asked, offered, True)
        start = len(prompt) if whole.startswith(prompt) else _shared(prompt, whole)
        end = max((at for mark in ENDS if (at := whole.rfind(mark, start)) > 0), default=len(whole))
        text = whole[start:end]
        opens = reasoning_format(self.format.reasoning_parser).openings
        thinks = start == len(prompt) and prompt.rstrip().endswith(opens)
        kept = (said if said in text else "" for said in (content, reasoning))
        return Answer(text, *kept, thinks)

    def _call(self, at: int, call: Call) -> Message:
        name, arguments = call
        is_json = "json" in self.takes
        given = json.dumps(arguments, ensure_ascii=False) if is_json else dict(arguments)
        id = f"call{at:05}" if "mistral" in self.format.name else f"functions.{name}:{at}"
        return {"id": id, "type": "function", "function": {"name": name, "arguments": given}}


def _shared(prompt: str, whole: str) -> int:
    """Length, in whole tags, of the prompt's part that the conversation begins with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False))
    return len(re.sub(r"<[^>]*$", "", "".join(char for char, _ in same)))


def by_jinja(source: str) -> Render:
    template = ChatTemplate(source)
    named = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")

    def render(messages: Sequence[Message], tools: Sequence[Message], opens: bool) -> str:
        return template.render(messages, tools, named, add_generation_prompt=opens)

    return render


def _by_deepseek(name: str) -> Render:
    """Prompts that DeepSeek writes in code, which vLLM ships."""
    encode = import_module(f"vllm.tokenizers.{name}_encoding").encode_messages

    def render(messages: Sequence[Message], tools: Sequence[Message], opens: bool) -> str:
        system = {"role": "system", "content": "", "tools": list(tools)}
        return str(encode([system, *map(dict, messages)], thinking_mode="thinking"))

    return render


def _by_inkling() -> Render:
    """Inkling's are written in code as well."""
    from vllm.renderers.inkling_encoding import render_inkling_messages

    class Pieces:
        """A tokenizer whose tokens are the texts themselves."""

        def encode_text(self, text: str) -> list[str]:
            return [text]

        def encode_special(self, token: str) -> str:
            return token

    def render(messages: Sequence[Message], tools: Sequence[Message], opens: bool) -> str:
        pieces: Any = Pieces()
        ids = render_inkling_messages(messages, pieces, add_generation_prompt=opens, tools=tools)
        return "".join(map(str, ids))

    return render


def _by_kimi_k3() -> Render:
    """Moonshot's encoder, which MLX-VLM ships; the file imports nothing of the package."""
    path = _folder("mlx_vlm") / "models/kimi_k3/encoding_k3.py"
    spec = importlib.util.spec_from_file_location("encoding_k3", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["encoding_k3"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def render(messages: Sequence[Message], tools: Sequence[Message], opens: bool) -> str:
        parts = module.build_chat_segments(
            list(messages), list(tools), add_generation_prompt=opens, thinking=True
        )
        return "".join(part.text for part in parts)

    return render


@cache
def _folder(name: str) -> Path:
    return next(install(PACKAGES[name]).glob(f"lib/python*/site-packages/{name}"))


def read_source(package: str, name: str) -> str:
    if package != "xinference":
        inner = "utils/chat_templates/templates" if package == "axolotl" else "chat_templates"
        return (_folder(package) / inner / f"{name}.jinja").read_text(encoding="utf-8")
    about = _folder(package) / f"model/llm/models/{name}.json"
    found = json.loads(about.read_text(encoding="utf-8"))
    return str((found[-1] if isinstance(found, list) else found)["chat_template"])


def open_template(place: str) -> Own:
    """Read a template of ``PLACES``, installing its package when it is not there."""
    package, _, name = place.partition(":")
    form, takes = PLACES[place]
    reasoning = {"lfm2": "qwen3"}.get(form, formats()[form].reasoning_parser)
    return Own(
        _make(package, name),
        replace(formats()[form], reasoning_parser=reasoning),
        frozenset(filter(None, takes.split(", "))),
    )


def _make(package: str, name: str) -> Render:
    if package == "vllm":
        return _by_inkling() if name == "inkling" else _by_deepseek(name)
    if package == "mlx_vlm":
        return _by_kimi_k3()
    return by_jinja(read_source(package, name))


_TABLE = """
vllm deepseek_v32 json: deepseek_v32
vllm deepseek_v4 json: deepseek_v4
vllm deepseek_v41 json: deepseek_v41
vllm inkling: inkling
mlx_vlm kimi_k3: kimi_k3
axolotl cohere: command_a_tool_use
axolotl jamba: jamba
trl gemma4: gemma4 gemma4_v2 gemma4_v3 gemma4_v4 gemma4_v5 diffusion_gemma
trl glm45: glm4moe
trl hermes: qwen2_5 qwen3 qwen3_instruct_2507 qwen3_vl
trl lfm2: lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl lfm2_v2
trl llama3_json one, calls: llama3_1 llama3_2
trl muse_glimmer: muse_glimmer
trl openai one, calls: gptoss
trl qwen3_coder: nemotron_3_5_lightning nemotron_3_nano nemotron_3_super nemotron_3_ultra
trl qwen3_coder: qwen3_5_think qwen3_6 qwen3_8
trl qwen3_coder no thinking: qwen3_5_nothink
xinference deepseek_v3 json: deepseek-v3-0324 deepseek-r1-0528
xinference glm45: glm-4.5 GLM-4.6 glm-4.5v
xinference glm47: GLM-4.7 GLM-4.7-Flash glm-5 glm-5.1 glm-5.2 glm-5.3 Ling-3.0-flash
xinference hermes: Baichuan-M2 KAT-V1 QwQ-32B qwen2.5-instruct qwen3 vibethinker
xinference hermes: Qwen3-Instruct Qwen3-Thinking Qwen3-Next-Instruct Qwen3-Next-Thinking
xinference hermes: Qwen3-Omni-Instruct Qwen3-Omni-Thinking Qwen3-VL-Instruct Qwen3-VL-Thinking
xinference kimi_k2: Kimi-K2.5
xinference llama3_json one, calls: llama-3.1-instruct llama-3.3-instruct
xinference minicpm5: minicpm5-1b minicpm5-2b
xinference minimax_m2: MiniMax-M2 MiniMax-M2.5 MiniMax-M2.7
xinference minimax_m3: MiniMax-M3
xinference mistral_v3: mistral-instruct-v0.3 mistral-nemo-instruct mistral-large-instruct
xinference openai one, calls: gpt-oss
xinference qwen3_coder: Qwen3-Coder qwen3.5 qwen3.6 qwen3.8 qwen3.8-max Nex-N2
xinference seed_oss: seed-oss
"""
"""Package, golden format and options, and the names of templates."""


def _read_table() -> Mapping[str, tuple[str, str]]:
    places = {}
    for line in _TABLE.strip().splitlines():
        head, _, names = line.partition(": ")
        package, form, *takes = head.split(" ", 2)
        places |= {f"{package}:{name}": (form, "".join(takes)) for name in names.split()}
    return places


PLACES = _read_table()
"""Rows by package and template: the golden format, and options."""
