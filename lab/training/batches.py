"""Batches of documents with similar lengths, in an order fixed by a seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SORTED_TOGETHER = 2048
Document = tuple[np.ndarray, np.ndarray]
"""Token ids, and a loss weight for each."""


@dataclass(frozen=True)
class Corpus:
    """Concatenated documents, with a loss weight for each token."""

    ids: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray

    @staticmethod
    def join(documents: Iterable[Document]) -> Corpus:
        ids, weights = zip(*documents, strict=True)
        lengths = np.array([len(document) for document in ids])
        return Corpus(np.concatenate(ids), np.concatenate(weights), lengths)

    @staticmethod
    def load(path: Path) -> Corpus:
        with np.load(path) as arrays:
            return Corpus(arrays["ids"], arrays["weights"], arrays["lengths"])

    def save(self, path: Path) -> None:
        np.savez(path, ids=self.ids, weights=self.weights, lengths=self.lengths)

    @cached_property
    def offsets(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def __iter__(self) -> Iterator[Document]:
        for start, end in zip(self.offsets, self.offsets[1:], strict=False):
            yield self.ids[start:end], self.weights[start:end]

    def batch(self, documents: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return ids and weights, padded at the end: [documents, longest]."""
        length = int(self.lengths[documents].max())
        ids = np.zeros((len(documents), length), np.int64)
        weights = np.zeros((len(documents), length), np.float32)
        for row, document in enumerate(documents):
            start, end = self.offsets[document], self.offsets[document + 1]
            ids[row, : end - start] = self.ids[start:end]
            weights[row, : end - start] = self.weights[start:end]
        return torch.from_numpy(ids), torch.from_numpy(weights)


def epoch(corpus: Corpus, tokens: int, seed: int) -> list[np.ndarray]:
    """Return every document once, in padded batches of at most `tokens` tokens if possible."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(corpus.lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), SORTED_TOGETHER):
        batches += group_by_length(order[start : start + SORTED_TOGETHER], corpus.lengths, tokens)
    return [batches[i] for i in generator.permutation(len(batches))]


def group_by_length(documents: np.ndarray, lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Sort documents by length and split them into batches. `lengths` are those of all."""
    documents = documents[np.argsort(lengths[documents], kind="stable")]
    batches, start = [], 0
    for end, length in enumerate(lengths[documents]):
        if end > start and length * (end + 1 - start) > tokens:
            batches.append(documents[start:end])
            start = end
    batches.append(documents[start:])
    return batches


def batches(
    corpus: Corpus, tokens: int, seed: int, skip: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches endlessly; `skip` batches were used before a restart."""

    def indices() -> Iterator[np.ndarray]:
        for number in count():
            yield from epoch(corpus, tokens, seed * 1000 + number)

    for documents in islice(indices(), skip, None):
        yield corpus.batch(documents)
