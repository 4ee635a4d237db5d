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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from eaglegate.lab.training.batches import group_by_length
from eaglegate.lab.training.corpus import LAST
from eaglegate.lab.training.data.conversation import LONG, SHORT, conversation
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import answer_text, prompt_text
from eaglegate.lab.training.optimiser import Clock
from eaglegate.lab.training.target import TargetModel

SEED, SHORT_ANSWERS, LONG_ANSWERS = 101, 18_000, 500
THINKING_SHARE = 0.9
BATCH_TOKENS = 6_000
MAX_TOKENS = 2_600
Exchange = tuple[list[int], list[int]]
"""Token ids of prompt and answer. With thinking off, the prompt contains the think block."""


def make_expected_answers(tokenizer: Any, seed: int, short: int, long: int) -> Iterator[Exchange]:
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
            yield prompt, answer


@torch.inference_mode()
def find_own_answers(target: TargetModel, group: Sequence[Exchange]) -> list[list[int]]:
    """Return the target's greedy answers up to the first difference from the expected text."""
    length = max(len(prompt) + len(answer) for prompt, answer in group)
    padded_ids = [[*prompt, *answer] for prompt, answer in group]
    padded_ids = [ids + [0] * (length - len(ids)) for ids in padded_ids]
    ids = torch.tensor(padded_ids, device=next(target.model.parameters()).device)
    _, hidden = target.states(ids, ())
    answers = []
    for row, (prompt, answer) in zip(hidden, group, strict=True):
        start = len(prompt) - 1
        predictions = target.logits(row[start : start + len(answer)]).argmax(-1).tolist()
        answers.append(cut_at_difference(predictions, answer))
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
    exchanges = list(make_expected_answers(tokenizer, SEED, SHORT_ANSWERS, LONG_ANSWERS))
    lengths = np.array([len(prompt) + len(answer) for prompt, answer in exchanges])
    groups = group_by_length(np.arange(len(lengths)), lengths, BATCH_TOKENS)
    clock = Clock(len(groups))
    new_path = options.out.with_suffix(".new")
    with new_path.open("w", encoding="utf-8") as out:
        for number, indices in enumerate(groups, 1):
            group = [exchanges[index] for index in indices]
            for (prompt, _), answer in zip(group, find_own_answers(target, group), strict=True):
                out.write(json.dumps({"prompt_ids": prompt, "answer_ids": answer}) + "\n")
            if number % 20 == 0 or number == len(groups):
                print(clock.describe(number), flush=True)
    new_path.replace(options.out)


if __name__ == "__main__":
    main()
