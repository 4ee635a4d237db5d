"""What a parser costs a token: ours beside vLLM's for the same format, in the same run.

One call writes a file of 1, 16 or 64 kB, and arrives one or four tokens a step. The figures are
microseconds of CPU time a token, over the whole output. Ours turn token ids into events, so that
detokenisation is in them; vLLM's parser is handed the text as well, made beforehand, the way its
chat server drives it (``parse_delta``). A measurement of vLLM stops after ``--budget`` seconds and
is then marked ``>``: its cost still grew; 0 leaves vLLM out. ``!`` marks a result of vLLM's that is
not the call. The ratio is vLLM's figure to ours.

    python benchmarks/parsers.py [--formats NAME ...] [--sizes 1000 16000] [--budget 10]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine.events import Outcome, ToolCallEnd
from engine.types import FinishReason
from server.parsing.parser import make_parser
from server.parsing.registry import tool_format
from server.parsing.vocabulary import Vocabulary

TOKENIZER = Path(__file__).parent.parent / "engine/demo/target/tokenizer.json"
LINE = "def f(x):\n    return \"<a href='x'>\" + x  # {1: [2, 3]}\n"
TOOL = {
    "type": "function",
    "function": {
        "name": "write",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        },
    },
}
M3 = "]<]minimax[>["
OUTPUTS: dict[str, Callable[[str], str]] = {
    "deepseek_v3": lambda text: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```json\n"
        f"{_json(text)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "apertus": lambda text: f'<|tools_prefix|>[{{"write": {_json(text)}}}]<|tools_suffix|>',
    "gemma4": lambda text: f'<|tool_call>call:write{{text:<|"|>{text}<|"|>}}<tool_call|>',
    "kimi_k3": lambda text: (
        '<|open|>tools<|sep|><|open|>call tool="write" index="1"<|sep|>'
        f'<|open|>argument key="text" type="string"<|sep|>{text}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "jamba": lambda text: (
        f'<tool_calls>[{{"name": "write", "arguments": {_json(text)}}}]</tool_calls>'
    ),
    "lfm2": lambda text: f"<|tool_call_start|>[write(text={json.dumps(text)})]<|tool_call_end|>",
    "olmo3": lambda text: f"<function_calls>\nwrite(text={json.dumps(text)})\n</function_calls>",
    "seed_oss": lambda text: (
        "<seed:tool_call>\n<function=write>\n<parameter=text>\n"
        f"{text}\n</parameter>\n</function>\n</seed:tool_call>"
    ),
    "xlam": lambda text: f'[{{"name": "write", "arguments": {_json(text)}}}]',
    "deepseek_v31": lambda text: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{_json(text)}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": lambda text: (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write">\n'
        f'<｜DSML｜parameter name="text" string="true">{text}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "glm45": lambda text: (
        f"<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    ),
    "granite": lambda text: f'<|tool_call|>[{{"name": "write", "arguments": {_json(text)}}}]',
    "granite4": lambda text: _hermes(text),
    "hermes": lambda text: _hermes(text),
    "kimi_k2": lambda text: (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0"
        f"<|tool_call_argument_begin|>{_json(text)}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "llama3_json": lambda text: f'{{"name": "write", "parameters": {_json(text)}}}',
    "llama4_pythonic": lambda text: f"[write(text={json.dumps(text)})]",
    "minimax_m2": lambda text: (
        '<minimax:tool_call>\n<invoke name="write">\n'
        f'<parameter name="text">{text}</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "mistral": lambda text: f"[TOOL_CALLS]write[ARGS]{_json(text)}",
    "openai": lambda text: (
        "<|channel|>commentary to=functions.write <|constrain|>json<|message|>"
        f"{_json(text)}<|call|>"
    ),
    "pythonic": lambda text: f"[write(text={json.dumps(text)})]",
    "functiongemma": lambda text: (
        f"<start_function_call>call:write{{text:<escape>{text}<escape>}}<end_function_call>"
    ),
    "hy_v3": lambda text: (
        f"<tool_calls><tool_call>write<tool_sep><arg_key>text</arg_key><arg_value>{text}"
        "</arg_value></tool_call></tool_calls>"
    ),
    "inkling": lambda text: (
        f'<|content_invoke_tool_json|>{{"name": "write", "args": {_json(text)}}}<|end_message|>'
    ),
    "k2_horizon": lambda text: (
        "<ifm|tool_calls>\n<ifm|tool_call>write\n<ifm|arg_key>text</ifm|arg_key>\n"
        f"<ifm|arg_value>{text}</ifm|arg_value>\n</ifm|tool_call>\n</ifm|tool_calls>"
    ),
    "minicpm5": lambda text: (
        f'<function name="write"><param name="text"><![CDATA[{text}]]></param></function>'
    ),
    "minimax_m3": lambda text: (
        f'{M3}<tool_call>\n{M3}<invoke name="write">\n{M3}<text>{text}{M3}</text>\n'
        f"{M3}</invoke>\n{M3}</tool_call>"
    ),
    "muse_glimmer": lambda text: (
        '<|start|>assistant to=write<|message|><atem:function_calls>\n<atem:invoke name="write">\n'
        f'<atem:parameter name="text">{text}</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eom|>"
    ),
    "plamo3": lambda text: (
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>write<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
        f"{_json(text)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        "<|plamo:end_tool_requests:plamo|>"
    ),
    "step3": lambda text: (
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        f'<steptml:invoke name="write"><steptml:parameter name="text">{text}</steptml:parameter>'
        "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"
    ),
    "qwen3_coder": lambda text: (
        "<tool_call>\n<function=write>\n<parameter=text>\n"
        f"{text}\n</parameter>\n</function>\n</tool_call>"
    ),
}


def _json(text: str) -> str:
    return json.dumps({"path": "a.py", "text": text})


def _hermes(text: str) -> str:
    return f'<tool_call>\n{{"name": "write", "arguments": {_json(text)}}}\n</tool_call>'


def tokenizer_with(name: str) -> Tokenizer:
    """The demo's tokenizer with the markers of a format as added tokens."""
    form = tool_format(name)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    known = set(tokenizer.get_vocab())
    own = form.texts or (*form.markers, form.fragment)
    missing = [text for text in own if text and text not in known]
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True)
            for text in missing
            if not form.fragment or form.fragment not in text or text == form.fragment
        ]
    )
    return tokenizer


def steps(ids: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def ours(name: str, tokenizer: Tokenizer, ids: list[int], size: int) -> float:
    """Seconds of CPU time for the whole output."""
    parser = make_parser(Vocabulary.from_tokenizers(tokenizer), tool_parser=name, tools=[TOOL])
    started = time.process_time()
    for step in steps(ids, size):
        parser.feed(step)
    events = parser.flush(FinishReason.STOP)
    spent = time.process_time() - started
    assert not events or events[-1] == ToolCallEnd(0, Outcome.VALID), (name, events)
    return spent


class Vllm:
    """vLLM's parser of one format, driven as its chat server does."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        from transformers import PreTrainedTokenizerFast
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser.parser_manager import ParserManager

        self._tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        self._make: Any = ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)
        self._request = ChatCompletionRequest(
            model="m", messages=[{"role": "user", "content": "hi"}], tools=[TOOL], stream=True
        )

    def run(self, ids: list[int], size: int, budget_s: float) -> Measured:
        parser = self._make(self._tokenizer, self._request.tools)
        parts = list(steps(ids, size))
        texts = [self._tokenizer.decode(part, skip_special_tokens=False) for part in parts]
        deltas, done, started = [], 0, time.process_time()
        for number, (part, text) in enumerate(zip(parts, texts, strict=True)):
            delta = parser.parse_delta(
                delta_text=text,
                delta_token_ids=part,
                request=self._request,
                prompt_token_ids=[1],
                finished=number == len(parts) - 1,
            )
            deltas.append(delta)
            done += len(part)
            if time.process_time() - started > budget_s:
                break
        return Measured(time.process_time() - started, done, _arguments(deltas))


@dataclass(frozen=True)
class Measured:
    """CPU time for so many tokens, and the arguments that came out."""

    seconds: float
    tokens: int
    arguments: str


def _arguments(deltas: list[Any]) -> str:
    calls = [call for delta in deltas if delta for call in delta.tool_calls or ()]
    return "".join(call.function.arguments or "" for call in calls if call.function)


def same(arguments: str, text: str) -> bool:
    try:
        return bool(json.loads(arguments)["text"] == text)
    except (ValueError, KeyError):
        return False


def row(name: str, size: int, step: int, budget_s: float, repeat: int) -> str:
    tokenizer = tokenizer_with(name)
    text = (LINE * (size // len(LINE) + 1))[:size].rstrip("\n")
    ids = tokenizer.encode(OUTPUTS[name](text), add_special_tokens=False).ids
    best = min(ours(name, tokenizer, ids, step) for _ in range(repeat)) / len(ids) * 1e6
    head = f"{name:16} {size // 1000:3} kB {step:2} {best:8.2f}"
    if not budget_s:
        return head
    if name == "openai":  # its parser needs the harmony vocabulary, which is not ours to fetch
        return f"{head} {'-':>10} {'-':>9}"
    vllm = Vllm(name, tokenizer).run(ids, step, budget_s)
    theirs = vllm.seconds / vllm.tokens * 1e6
    grew = vllm.tokens < len(ids)
    mark = ">" if grew else " " if same(vllm.arguments, text) else "!"
    return f"{head} {mark}{theirs:9.2f} {theirs / best:9.1f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--formats", nargs="+", default=list(OUTPUTS), choices=list(OUTPUTS))
    arguments.add_argument("--sizes", nargs="+", type=int, default=[1000, 16000, 64000])
    arguments.add_argument("--steps", nargs="+", type=int, default=[1, 4])
    arguments.add_argument(
        "--budget", type=float, default=10.0, help="seconds, for vLLM; 0 leaves it out"
    )
    arguments.add_argument("--repeat", type=int, default=3)
    options = arguments.parse_args()
    print(f"{'format':16} {'size':>6} {'k':>2} {'ours us':>8} {'vLLM us':>10} {'ratio':>9}")
    for name in options.formats:
        for size in options.sizes:
            for step in options.steps:
                print(row(name, size, step, options.budget, options.repeat), flush=True)


if __name__ == "__main__":
    main()
