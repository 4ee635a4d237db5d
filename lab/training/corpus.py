"""Conversations as token ids with loss weights, written to one file per set.

`python -m eaglegate.lab.training.corpus --out DIR` makes the tokenizer and the training sets, only
from seeds.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from eaglegate.lab.training.batches import Corpus, Document
from eaglegate.lab.training.data.arithmetic import arithmetic
from eaglegate.lab.training.data.conversation import LONG, SHORT, Shape, conversation
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import (
    Dialogue,
    Spans,
    answer_text,
    prompt_segments,
    prompt_text,
)
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


def make_document(tokenizer: Tokenizer, source: Source, dialogue: Dialogue) -> Document:
    """Return ids and weights of one conversation. Of an answer under a grammar, only what the model
    decides counts.
    """
    thinking = source.chance(THINKING_SHARE)
    segments = prompt_segments(dialogue)
    texts = [segment.text for segment in segments] + [*answer_text(dialogue, thinking)]
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
    spans = dialogue.own_spans
    weights += [ANSWER * is_decided(offset, spans) for offset in encodings[-1].offsets]
    tokens = [token for ids in id_lists for token in ids]
    return np.array(tokens, np.uint16), np.array(weights, np.float16)


def is_decided(token: tuple[int, int], spans: Spans | None) -> bool:
    return spans is None or any(start < token[1] and token[0] < end for start, end in spans)


def make_sum_dialogue(source: Source) -> Dialogue:
    turn = arithmetic(source)
    messages = [{"role": "user", "content": turn.user}]
    return Dialogue(messages, None, turn.thought, turn.answer, (), turn.direct_answer)


def make_short(
    tokenizer: Tokenizer, source: Source, count: int, sums: float, shape: Shape = SHORT
) -> Corpus:
    """Make short documents, a share of which are `sums`."""

    def make() -> Document:
        dialogue = make_sum_dialogue(source) if source.chance(sums) else conversation(source, shape)
        return make_document(tokenizer, source, dialogue)

    return collect(make, count, 0)


def make_long(
    tokenizer: Tokenizer, source: Source, count: int, shape: Shape = LONG, share: float = 0.5
) -> Corpus:
    """Make long documents: a `share` of conversations, and stacks with answers far from the
    start.
    """

    def make() -> Document:
        if source.chance(share):
            return make_document(tokenizer, source, conversation(source, shape))
        return stack(tokenizer, source, source.number(700, 2800))

    return collect(make, count, 600)


def collect(make: Callable[[], Document], count: int, min_tokens: int) -> Corpus:
    """Return the first `count` documents with a fitting length."""
    documents: list[Document] = []
    while len(documents) < count:
        document = make()
        if min_tokens <= len(document[0]) <= MAX_TOKENS:
            documents.append(document)
    return Corpus.join(documents)


def stack(tokenizer: Tokenizer, source: Source, tokens: int) -> Document:
    """Concatenate independent conversations."""
    parts: list[Document] = []
    newline = np.array(tokenizer.encode("\n", add_special_tokens=False).ids, np.uint16)
    while sum(len(ids) for ids, _ in parts) < tokens:
        parts.append(make_document(tokenizer, source, conversation(source, SHORT)))
        parts.append((newline, np.zeros(len(newline), np.float16)))
    documents = Corpus.join(parts[:-1])
    return documents.ids, documents.weights


SETS: dict[str, Callable[[Tokenizer], Corpus]] = {
    "short": lambda tokenizer: make_short(tokenizer, Source(SEED + 1), 90_000, 0.12),
    "long": lambda tokenizer: make_long(tokenizer, Source(SEED + 2), 6_000),
    "dense": lambda tokenizer: make_short(tokenizer, Source(SEED + 4), 30_000, 0.25, DENSE),
    "last": lambda tokenizer: make_short(tokenizer, Source(SEED + 5), 90_000, 0.12, LAST),
    "close": lambda tokenizer: make_short(tokenizer, Source(SEED + 6), 24_000, 0.12, CLOSE),
    "far": lambda tokenizer: make_long(tokenizer, Source(SEED + 7), 3_000, FAR, 0.8),
}
"""Sets by name, in the order of their first use (`train_target.Recipe`)."""


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
    tokenizer = write_tokenizer(out / "tokenizer", SEED)
    for name, make in SETS.items():
        corpus = make(tokenizer)
        corpus.save(out / f"{name}.npz")
        digest = hashlib.sha256(corpus.ids.tobytes()).hexdigest()[:12]
        count, tokens = len(corpus.lengths), len(corpus.ids)
        print(f"{name}: {count} documents, {tokens:,} tokens, sha256 {digest}", flush=True)


if __name__ == "__main__":
    main()
