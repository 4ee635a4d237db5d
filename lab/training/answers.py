"""The target's own greedy answers to generated prompts, on which its drafts are trained.

The generator knows a good target's answer, so no token needs to be generated: one forward pass over
prompt and expected answer gives the target's choice at every place. While it equals the expected
token, greedy decoding would have produced the same text. At the first difference, the answer ends
with the target's own token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from eaglegate.lab.training.corpus import LAST
from eaglegate.lab.training.data.conversation import LONG, SHORT, conversation
from eaglegate.lab.training.data.render import answer_text, prompt_text
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.progress import Clock
from eaglegate.lab.training.target import TargetModel

SEED, SHORT_ANSWERS, LONG_ANSWERS = 101, 18_000, 500
THINKING_SHARE = 0.9
BATCH_TOKENS = 6_000
MAX_TOKENS = 2_600


@dataclass(frozen=True)
class Expected:
    """Prompt and the generator's answer. With thinking off, the prompt contains the think block."""

    prompt: list[int]
    answer: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.answer


def make_expected_answers(tokenizer: Any, seed: int, short: int, long: int) -> Iterator[Expected]:
    source = Source(seed)
    kinds = (SHORT, SHORT, LAST)
    shapes = [kinds[i % len(kinds)] for i in range(short)]
    for shape in shapes + [replace(LONG, turns=tuple(range(4, 24)))] * long:
        dialogue = conversation(source, shape)
        thinking = source.chance(THINKING_SHARE)
        think_block, body = answer_text(dialogue, thinking)
        prompt_part = prompt_text(dialogue)
        texts = (prompt_part, think_block + body) if thinking else (prompt_part + think_block, body)
        prompt, answer = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        if len(prompt) + len(answer) <= MAX_TOKENS:
            yield Expected(prompt, answer)


def group_by_length(items: Sequence[Expected]) -> Iterator[list[Expected]]:
    """Yield groups of exchanges with similar lengths."""
    group: list[Expected] = []
    for item in sorted(items, key=lambda item: len(item.ids)):
        if group and len(item.ids) * (len(group) + 1) > BATCH_TOKENS:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


@torch.inference_mode()
def find_own_answers(target: TargetModel, group: list[Expected]) -> list[list[int]]:
    """Return the target's greedy answers up to the first difference from the expected text."""
    length = max(len(item.ids) for item in group)
    padded_ids = [item.ids + [0] * (length - len(item.ids)) for item in group]
    ids = torch.tensor(padded_ids, device=next(target.model.parameters()).device)
    _, hidden = target.states(ids, ())
    answers = []
    for row, item in zip(hidden, group, strict=True):
        start = len(item.prompt) - 1
        predictions = target.logits(row[start : start + len(item.answer)]).argmax(-1).tolist()
        answers.append(cut_at_difference(predictions, item.answer))
    return answers


def cut_at_difference(predictions: Sequence[int], answer: Sequence[int]) -> list[int]:
    for i, (token, answer_token) in enumerate(zip(predictions, answer, strict=True)):
        if token != answer_token:
            return list(predictions[: i + 1])
    return list(predictions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    target = TargetModel.load(options.target, options.device, torch.bfloat16)
    items = list(make_expected_answers(tokenizer, SEED, SHORT_ANSWERS, LONG_ANSWERS))
    groups = list(group_by_length(items))
    clock, num_complete = Clock(len(groups), 0), 0
    draft_path = options.out.with_suffix(".new")
    with draft_path.open("w", encoding="utf-8") as out:
        for number, group in enumerate(groups, 1):
            answers = find_own_answers(target, group)
            for item, answer in zip(group, answers, strict=True):
                num_complete += answer == item.answer
                row = {"prompt_ids": item.prompt, "answer_ids": answer}
                out.write(json.dumps(row) + "\n")
            if number % 20 == 0 or number == len(groups):
                print(clock.describe(number), flush=True)
    draft_path.replace(options.out)
    print(
        f"{len(items)} answers, {num_complete} of them as expected, the others cut at their "
        "difference"
    )


if __name__ == "__main__":
    main()
