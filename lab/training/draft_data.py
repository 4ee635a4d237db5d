"""Training data for drafts: JSON lines, one exchange each.

A line is {"prompt_ids": [...], "answer_ids": [...]}, or {"prompt": text, "answer": text}, or
{"messages": [...], "tools": [...]} with the assistant's answer last. The answers should be the
target's own, because the draft learns to predict the target. A capture (a file, or a folder of
files) needs no conversion: its answers are the target's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eaglegate.lab.training.batches import Corpus, Document

MIN_ANSWER = 3
"""Shortest answer: a row needs two tokens after it to be judged."""


class BadData(ValueError):
    """Data that cannot be used for training."""


def load_exchanges(
    path: Path, tokenizer: Any, max_tokens: int, key_file: Path | None = None
) -> Corpus:
    """Load all exchanges of at most `max_tokens`; weight 1 marks the answer's tokens."""
    documents: list[Document] = []
    num_skipped = 0
    for prompt, answer in read(path, tokenizer, key_file):
        if len(prompt) + len(answer) > max_tokens or len(answer) < MIN_ANSWER or not prompt:
            num_skipped += 1
            continue
        weights = np.repeat(np.array([0, 1], np.float16), [len(prompt), len(answer)])
        documents.append((np.array([*prompt, *answer], np.int32), weights))
    if not documents:
        raise BadData(f"{path}: no exchange fits ({num_skipped} too long or without an answer)")
    corpus = Corpus.join(documents)
    counts = f"{len(documents)} exchanges, {len(corpus.ids):,} tokens, {num_skipped} left out"
    print(f"{path.name}: {counts}", flush=True)
    return corpus


def is_capture(path: Path) -> bool:
    if path.is_dir() or path.suffix == ".gz":
        return True
    with path.open("rb") as lines:
        line = lines.readline()
    return line.startswith(b"gAAAA") or b'"eaglegate":' in line


def read_capture(path: Path, key_file: Path | None = None) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the exchanges of a capture. Raises BadData."""
    from eaglegate.observability.captures.files import make_cipher, read_keys, read_records
    from eaglegate.observability.captures.record import CaptureError

    try:
        cipher = make_cipher(read_keys(key_file) if key_file else [])
        for record in read_records(path, cipher):
            for prompt, choice in record.trajectories():
                yield list(prompt), list(choice.token_ids or ())
    except (CaptureError, ValueError) as problem:
        raise BadData(str(problem)) from problem


def read(
    path: Path, tokenizer: Any, key_file: Path | None = None
) -> Iterator[tuple[list[int], list[int]]]:
    if is_capture(path):
        yield from read_capture(path, key_file)
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield exchange(json.loads(line), tokenizer)
            except (KeyError, TypeError, json.JSONDecodeError) as problem:
                raise BadData(
                    f"{path}:{number}: {problem!r}; a line needs prompt_ids and answer_ids, "
                    "prompt and answer, or messages"
                ) from problem


def exchange(row: Mapping[str, Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    if "prompt_ids" in row:
        return list(row["prompt_ids"]), list(row["answer_ids"])
    if "prompt" in row:
        prompt, answer = row["prompt"], row["answer"]
    else:
        prompt, answer = render(row, tokenizer)
    return encode(tokenizer, prompt), encode(tokenizer, answer)


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def render(row: Mapping[str, Any], tokenizer: Any) -> tuple[str, str]:
    """Return the prompt as served, and the rest of the conversation as the template writes it."""
    messages, tools = row["messages"], row.get("tools")
    if messages[-1]["role"] != "assistant":
        raise KeyError("the last message is not the assistant's")
    template = tokenizer.apply_chat_template
    prompt = template(messages[:-1], tools=tools, add_generation_prompt=True, tokenize=False)
    text = template(messages, tools=tools, tokenize=False)
    if not text.startswith(prompt):
        raise KeyError("the chat template renders the answer differently from the prompt")
    return prompt, text[len(prompt) :]
