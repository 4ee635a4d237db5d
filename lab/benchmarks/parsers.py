"""Measure the cost of parsers per token, ours and vLLM's for the same format, in the same run.

An output of 1, 16 or 64 kB arrives one or four tokens a step. ``--shapes`` selects one call with a
file, one with a file that quotes the format's own markers, one with a list of small objects, small
calls in a row, or prose without calls. The figures are microseconds of CPU time per token over the
whole output; ``worst`` is the longest single step in milliseconds of wall time. Our parsers turn
token ids into events, so they include detokenisation. vLLM's parser also gets the text, made
beforehand, as in its chat server (``parse_delta``). A measurement of vLLM stops after ``--budget``
seconds and is marked ``>``, because its cost was still growing; 0 leaves vLLM out. ``!`` marks a
result of vLLM's that differs from ours. The ratio is vLLM's figure to ours.

    python -m eaglegate.lab.benchmarks.parsers [--formats NAME ...] [--shapes file calls ...] \\
        [--sizes 1000 16000]
        [--budget 10]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from eaglegate.lab.benchmarks.parser_outputs import OUTPUTS, SHAPES, TOOL
from eaglegate.text.events import FinishReason, Outcome, ParserEvent, ToolCallDelta, ToolCallEnd
from eaglegate.text.parsing.answer import (
    make_parser,
)
from eaglegate.text.parsing.registry import tool_format
from eaglegate.text.parsing.vocabulary import Vocabulary

TOKENIZER = Path(__file__).parents[2] / "engine/demo/target/tokenizer.json"


def tokenizer_with(name: str) -> Tokenizer:
    """Return the demo's tokenizer with a format's markers as added tokens."""
    form = tool_format(name)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    vocabulary = set(tokenizer.get_vocab())
    texts = form.texts or (*form.markers, form.fragment)
    new_texts = [text for text in texts if text and text not in vocabulary]
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True)
            for text in new_texts
            if not form.fragment or form.fragment not in text or text == form.fragment
        ]
    )
    return tokenizer


def steps(ids: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


@dataclass(frozen=True)
class Cost:
    """CPU seconds of an output, wall time of its longest step, and its calls' arguments."""

    seconds: float
    longest_s: float
    arguments: str


def measure_ours(name: str, vocabulary: Vocabulary, parts: list[list[int]]) -> Cost:
    """Measure the whole output, and then each step of a second run."""
    parser = make_parser(vocabulary, tool_parser=name, tools=[TOOL])
    start = time.process_time()
    for part in parts:
        parser.feed(part)
    parser.flush(FinishReason.STOP)
    seconds = time.process_time() - start
    parser = make_parser(vocabulary, tool_parser=name, tools=[TOOL])
    events, longest_s = list[ParserEvent](), 0.0
    for part in parts:
        step_start = time.perf_counter()
        events += parser.feed(part)
        longest_s = max(longest_s, time.perf_counter() - step_start)
    events += parser.flush(FinishReason.STOP)
    outcomes = {event.outcome for event in events if isinstance(event, ToolCallEnd)}
    assert outcomes <= {Outcome.VALID, Outcome.UNCHECKED}, (name, outcomes)
    return Cost(seconds, longest_s, arguments_of(events))


def arguments_of(events: list[ParserEvent]) -> str:
    return "".join(event.arguments for event in events if isinstance(event, ToolCallDelta))


class Vllm:
    """vLLM's parser of one format, driven as in its chat server."""

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
        deltas, num_tokens, start = [], 0, time.process_time()
        for number, (part, text) in enumerate(zip(parts, texts, strict=True)):
            delta = parser.parse_delta(
                delta_text=text,
                delta_token_ids=part,
                request=self._request,
                prompt_token_ids=[1],
                finished=number == len(parts) - 1,
            )
            deltas.append(delta)
            num_tokens += len(part)
            if time.process_time() - start > budget_s:
                break
        return Measured(time.process_time() - start, num_tokens, _arguments(deltas))


@dataclass(frozen=True)
class Measured:
    """CPU time for a number of tokens, and the resulting arguments."""

    seconds: float
    tokens: int
    arguments: str


def _arguments(deltas: list[Any]) -> str:
    calls = [call for delta in deltas if delta for call in delta.tool_calls or ()]
    return "".join(call.function.arguments or "" for call in calls if call.function)


def are_equal(other_arguments: str, own_arguments: str) -> bool:
    """Return True if the arguments are equal except for blanks and escapes."""
    return _values(other_arguments) == _values(own_arguments)


def _values(arguments: str) -> list[Any] | None:
    """Parse consecutive JSON objects."""
    values, offset, decoder = [], 0, json.JSONDecoder()
    try:
        while offset < len(arguments):
            value, offset = decoder.raw_decode(arguments, offset)
            values.append(value)
    except ValueError:
        return None
    return values


def row(name: str, shape: str, size: int, step: int, options: argparse.Namespace) -> str:
    tokenizer = tokenizer_with(name)
    ids = tokenizer.encode(SHAPES[shape](name, size), add_special_tokens=False).ids
    vocabulary, parts = Vocabulary.from_tokenizers(tokenizer), list(steps(ids, step))
    costs = [measure_ours(name, vocabulary, parts) for _ in range(options.repeat)]
    cost_us = min(cost.seconds for cost in costs) / len(ids) * 1e6
    worst_ms = min(cost.longest_s for cost in costs) * 1e3
    head = f"{name:16} {shape:8} {size // 1000:4} kB {step:2} {cost_us:8.2f} {worst_ms:8.2f}"
    if not options.budget:
        return head
    if name == "openai":  # its parser needs the harmony vocabulary, which is not ours to fetch
        return f"{head} {'-':>10} {'-':>9}"
    vllm = Vllm(name, tokenizer).run(ids, step, options.budget)
    vllm_us = vllm.seconds / vllm.tokens * 1e6
    is_cut = vllm.tokens < len(ids)
    mark = ">" if is_cut else " " if are_equal(vllm.arguments, costs[0].arguments) else "!"
    return f"{head} {mark}{vllm_us:9.2f} {vllm_us / cost_us:9.1f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--formats", nargs="+", default=list(OUTPUTS), choices=list(OUTPUTS))
    arguments.add_argument("--shapes", nargs="+", default=["file"], choices=list(SHAPES))
    arguments.add_argument("--sizes", nargs="+", type=int, default=[1000, 16000, 64000])
    arguments.add_argument("--steps", nargs="+", type=int, default=[1, 4])
    arguments.add_argument(
        "--budget", type=float, default=10.0, help="seconds for vLLM; 0 leaves it out"
    )
    arguments.add_argument("--repeat", type=int, default=3)
    options = arguments.parse_args()
    titles = f"{'format':16} {'shape':8} {'size':>7} {'k':>2} {'ours us':>8} {'worst ms':>8}"
    print(f"{titles} {'vLLM us':>10} {'ratio':>9}")
    combinations = product(options.formats, options.shapes, options.sizes, options.steps)
    for name, shape, size, step in combinations:
        print(row(name, shape, size, step, options), flush=True)


if __name__ == "__main__":
    main()
