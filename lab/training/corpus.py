"""Conversations as token ids with loss weights, written to one file per set.

`python -m eaglegate.lab.training.corpus --out DIR` makes the tokenizer and the training sets, only
from seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from eaglegate.lab.training.data.arithmetic import arithmetic
from eaglegate.lab.training.data.conversation import LONG, SHORT, Shape, conversation
from eaglegate.lab.training.data.render import Segment, answer_text, prompt_segments, prompt_text
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import Dialogue
from eaglegate.lab.training.tokenizer import train_tokenizer

SEED = 11
ANSWER, EARLIER, PROMPT = 1.0, 0.5, 0.2
"""Loss weights of the model's turn, its earlier turns, and a sample of the prompt."""
PROMPT_SHARE = 0.08
MAX_TOKENS = 3072
THINKING_SHARE = 0.87
DENSE = Shape(turns=(1,), more_tools=(0, 0, 1, 2, 3))
LAST = Shape(
    turns=(1, 1, 1, 2),
    tools=0.7,
    more_tools=(0, 1, 1, 2, 3, 5, 8),
    idle_share=0.3,
    grammar_share=0.2,
    ragged_share=0.5,
)
CLOSE = replace(LAST, tools=0.8, idle_share=0.2, rival_share=0.6)
FAR = replace(LONG, tools=0.9, long_lookup=0.1, rival_share=0.6)


@dataclass
class Documents:
    """Concatenated token documents."""

    ids: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, ids: np.ndarray, weights: np.ndarray) -> None:
        self.ids.append(ids)
        self.weights.append(weights)
        self.kinds[kind] += 1

    def save(self, path: Path) -> None:
        lengths = np.array([len(ids) for ids in self.ids])
        arrays = {
            "ids": np.concatenate(self.ids),
            "weights": np.concatenate(self.weights),
            "lengths": lengths,
        }
        np.savez(path, **arrays)
        digest = hashlib.sha256(arrays["ids"].tobytes()).hexdigest()[:12]
        share = float((arrays["weights"] == ANSWER).mean())
        print(
            f"{path.name}: {len(lengths)} documents, {lengths.sum():,} tokens (mean "
            f"{lengths.mean():.0f}), {share:.0%} of them answers, sha256 {digest}"
        )
        print("  " + ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common()))


def weighted(
    tokenizer: Tokenizer,
    source: Source,
    segments: list[Segment],
    think_block: str,
    answer: str,
    thinking: bool,
    spans: tuple[tuple[int, int], ...] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and weights of one conversation. If `spans` are given, only those parts of the
    answer count.
    """
    texts = [segment.text for segment in segments] + [think_block, answer]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    id_lists = [item.ids for item in encodings]
    weights: list[float] = []
    for segment, ids in zip(segments, id_lists, strict=False):
        if segment.answer:
            # The first token of an earlier turn tells only that there is no think block.
            weights += [0.0] + [EARLIER] * (len(ids) - 1)
        else:
            weights += [PROMPT if source.chance(PROMPT_SHARE) else 0.0 for _ in ids]
    weights += [ANSWER if thinking else 0.0] * len(id_lists[-2])
    weights += [ANSWER * is_decided(offset, spans) for offset in encodings[-1].offsets]
    tokens = [token for ids in id_lists for token in ids]
    return np.array(tokens, np.uint16), np.array(weights, np.float16)


def is_decided(token: tuple[int, int], spans: tuple[tuple[int, int], ...] | None) -> bool:
    return spans is None or any(start < token[1] and token[0] < end for start, end in spans)


def make_document(
    tokenizer: Tokenizer, source: Source, dialogue: Dialogue
) -> tuple[np.ndarray, np.ndarray]:
    thinking = source.chance(THINKING_SHARE)
    think_block, answer = answer_text(dialogue, thinking)
    segments = prompt_segments(dialogue)
    return weighted(tokenizer, source, segments, think_block, answer, thinking, dialogue.own_spans)


def make_sum_dialogue(source: Source) -> Dialogue:
    turn = arithmetic(source)
    messages = [{"role": "user", "content": turn.user}]
    return Dialogue(turn.kind, messages, None, turn.thought, turn.answer, (), turn.direct_answer)


def short_documents(
    tokenizer: Tokenizer, source: Source, count: int, sums: float, shape: Shape = SHORT
) -> Documents:
    documents = Documents()
    while len(documents.ids) < count:
        dialogue = make_sum_dialogue(source) if source.chance(sums) else conversation(source, shape)
        ids, weights = make_document(tokenizer, source, dialogue)
        if len(ids) <= MAX_TOKENS:
            documents.add(dialogue.kind, ids, weights)
    return documents


def long_documents(
    tokenizer: Tokenizer, source: Source, count: int, shape: Shape = LONG, share: float = 0.5
) -> Documents:
    """Make long documents: a `share` of conversations, and stacks with answers far from the
    start.
    """
    documents = Documents()
    while len(documents.ids) < count:
        if source.chance(share):
            dialogue = conversation(source, shape)
            ids, weights = make_document(tokenizer, source, dialogue)
            kind = dialogue.kind
        else:
            ids, weights = stack(tokenizer, source, source.number(700, 2800))
            kind = "stack"
        if 600 <= len(ids) <= MAX_TOKENS:
            documents.add(kind, ids, weights)
    return documents


def stack(tokenizer: Tokenizer, source: Source, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate independent conversations."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    newline = np.array(tokenizer.encode("\n", add_special_tokens=False).ids, np.uint16)
    while sum(len(ids) for ids, _ in parts) < tokens:
        parts.append(make_document(tokenizer, source, conversation(source, SHORT)))
        parts.append((newline, np.zeros(len(newline), np.float16)))
    return np.concatenate([p[0] for p in parts[:-1]]), np.concatenate([p[1] for p in parts[:-1]])


def sample_texts(seed: int, count: int) -> Iterator[str]:
    source = Source(seed)
    for _ in range(count):
        dialogue = conversation(source)
        yield prompt_text(dialogue) + "".join(answer_text(dialogue, True))


def write_tokenizer(out: Path, seed: int, documents: int = 14_000) -> Tokenizer:
    train_tokenizer(sample_texts(seed, documents)).save_pretrained(out)
    return Tokenizer.from_file(str(out / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    tokenizer = write_tokenizer(out / "tokenizer", SEED)
    print(f"tokenizer: {time.monotonic() - start:.0f} s")

    def save_short(name: str, number: int, count: int, sums: float, shape: Shape = SHORT) -> None:
        source = Source(SEED + number, name == "validation")
        short_documents(tokenizer, source, count, sums, shape).save(out / f"{name}.npz")

    save_short("short", 1, 90_000, 0.12)
    long_documents(tokenizer, Source(SEED + 2), 6_000).save(out / "long.npz")
    save_short("dense", 4, 30_000, 0.25, DENSE)
    save_short("last", 5, 90_000, 0.12, LAST)
    save_short("close", 6, 24_000, 0.12, CLOSE)
    long_documents(tokenizer, Source(SEED + 7), 3_000, FAR, 0.8).save(out / "far.npz")
    save_short("validation", 3, 400, 0.0)
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    main()
