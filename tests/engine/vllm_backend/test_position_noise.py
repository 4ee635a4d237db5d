"""Noise keyed by position: the published hash, and exact samples at every depth."""

from __future__ import annotations

import struct
from itertools import chain, product
from typing import Any

import pytest
import torch

from eaglegate.engine.vllm_backend import position_noise
from eaglegate.engine.vllm_backend.patches.seeds import accept_drafts

SEEDS = (0, 1, 7, -1, -(2**63), 2**63 - 1, 2**40 + 3)
POSITIONS = (0, 1, 100, 131_071, 2**31 - 1)
SAMPLES = 20_000
CHAIN = 4


def murmur3(data: bytes) -> int:
    """MurmurHash3, x86, 32 bits, as published, for whole words and a zero seed."""
    mask, state = 0xFFFFFFFF, 0
    for (word,) in struct.iter_unpack("<I", data):
        word = word * 0xCC9E2D51 & mask
        word = (word << 15 | word >> 17) & mask
        state ^= word * 0x1B873593 & mask
        state = (state << 13 | state >> 19) & mask
        state = (state * 5 + 0xE6546B64) & mask
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & mask
    return state ^ state >> 16


def test_our_own_reading_of_the_hash_is_right() -> None:
    assert murmur3(b"") == 0
    assert murmur3(b"test") == 0xBA6BD213
    assert murmur3(b"aaaa" * 4) != murmur3(b"aaaa" * 3)


@pytest.mark.parametrize("block", [1, 13, 1 << 20])
def test_the_noise_is_the_hash_of_seed_position_and_token(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position_noise, "BLOCK", block)
    cases = list(product(SEEDS, POSITIONS))
    vocabulary = 50
    for seed, position in cases:
        hashes = [
            murmur3(struct.pack("<qII", seed, position, token)) for token in range(vocabulary)
        ]
        best = min(range(vocabulary), key=hashes.__getitem__)
        assert draw(torch.zeros(1, vocabulary), [seed], [position]).tolist() == [best]


def test_forbidden_tokens_are_never_drawn() -> None:
    """The hash of the only allowed token may even be the greatest there is."""
    logits = torch.full((SAMPLES, 3), -torch.inf)
    logits[:, 1] = 0.0
    assert (draw(logits, range(SAMPLES), [5] * SAMPLES) == 1).all()
    worst = position_noise._draw_waits(torch.tensor([[find_state(0xFFFFFFFF)]], dtype=torch.int32))
    assert 16 < worst.item() < 17


def find_state(wanted: int) -> int:
    """The state before the last steps of the hash whose outcome is ``wanted``."""
    mask = 0xFFFFFFFF
    state = wanted
    state ^= state >> 16
    state = state * pow(0xC2B2AE35, -1, 1 << 32) & mask
    state ^= state >> 13 ^ state >> 26
    state = state * pow(0x85EBCA6B, -1, 1 << 32) & mask
    state ^= state >> 16
    state ^= 16
    state = (state - 0xE6546B64) * pow(5, -1, 1 << 32) & mask
    return position_noise.signed(state)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(32, 3000, generator=torch.Generator().manual_seed(1))
    seeds, positions = list(range(32)), list(range(100, 132))
    together = draw(logits, seeds, positions).tolist()
    alone = [draw(logits[at : at + 1], [at], [100 + at]).item() for at in range(32)]
    assert together == alone
    assert draw(logits, seeds, positions).tolist() == together
    assert draw(logits, seeds, [p + 1 for p in positions]).tolist() != together


def test_the_seeds_and_positions_of_one_token_are_independent() -> None:
    """Neighbouring seeds, and neighbouring positions, draw as if by chance: pairs are uniform."""
    flat = torch.zeros(SAMPLES, 8)
    for one, two in (((0, 1), (0, 1)), ((0, 0), (0, 1)), ((0, 1), (0, 0))):
        (seed, other), (position, next_) = one, two
        base = torch.arange(SAMPLES)
        left = position_noise.sample(flat, base * 2 + seed, base * 3 + position)
        right = position_noise.sample(flat, base * 2 + other, base * 3 + next_)
        pairs = torch.bincount(left * 8 + right, minlength=64)
        assert chi_square(pairs, torch.full((64,), 1 / 64)) > 1e-4


@pytest.mark.parametrize("temperature", [0.7, 1.6])
def test_samples_have_the_exact_distribution(temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    row = torch.randn(60, generator=generator) * 2 / temperature
    row[::7] = -torch.inf
    for positions in (torch.full((SAMPLES,), 17), torch.arange(SAMPLES)):
        seeds = torch.arange(SAMPLES) if positions[0] == 17 else torch.full((SAMPLES,), 4)
        got = position_noise.sample(row.expand(SAMPLES, -1), seeds, positions)
        assert chi_square(torch.bincount(got, minlength=60), row.softmax(0)) > 1e-4


class Chain:
    """A target in which the next token depends on the last, and a draft that is often right."""

    def __init__(self, tokens: int = 5) -> None:
        generator = torch.Generator().manual_seed(8)
        self.target = torch.randn(tokens, tokens, generator=generator) * 1.5
        self.draft = self.target + torch.randn(tokens, tokens, generator=generator)
        self.tokens = tokens

    def generate(self, depth: int) -> tuple[torch.Tensor, int, int]:
        """``CHAIN`` tokens of each sample, and how many drafts were accepted and verified."""
        seeds = torch.arange(SAMPLES)
        last, written = torch.zeros(SAMPLES, dtype=torch.int64), torch.zeros(SAMPLES).long()
        text = torch.zeros(SAMPLES, CHAIN + depth + 1, dtype=torch.int64)
        accepted = verified = 0
        while (written < CHAIN).any():
            drafts = torch.empty(SAMPLES, 0, dtype=torch.int64)
            tip = last
            for _ in range(depth):
                tip = self.draft[tip].argmax(-1)
                drafts = torch.cat([drafts, tip.unsqueeze(1)], 1)
            places = torch.cat([last.unsqueeze(1), drafts], 1)
            positions = written.unsqueeze(1) + torch.arange(depth + 1)
            samples = position_noise.sample(
                self.target[places.flatten()],
                seeds.repeat_interleave(depth + 1),
                positions.flatten(),
            ).view(SAMPLES, depth + 1)
            ends = torch.arange(1, SAMPLES + 1) * depth
            out = accept_drafts(
                samples[:, :depth].flatten(), drafts.flatten(), ends, depth, samples[:, depth:]
            )
            fresh = (out >= 0).sum(1)
            busy = written < CHAIN
            accepted += int((fresh - 1)[busy].sum())
            verified += int(busy.sum()) * depth
            for column in range(depth + 1):
                rows = (busy & (column < fresh)).nonzero()[:, 0]
                text[rows, written[rows] + column] = out[rows, column].long()
            last = torch.where(busy, out.gather(1, fresh.unsqueeze(1) - 1)[:, 0].long(), last)
            written = torch.where(busy, written + fresh, written)
        return text[:, :CHAIN], accepted, verified

    def list_probabilities(self) -> torch.Tensor:
        """The probability of every text."""
        steps = self.target.softmax(-1)
        chances = steps[0]
        for _ in range(CHAIN - 1):
            chances = chances.unsqueeze(-1) * steps[torch.arange(len(chances)) % self.tokens]
            chances = chances.flatten()
        return chances


def test_every_depth_writes_the_same_texts_and_they_have_the_exact_distribution() -> None:
    model = Chain()
    whole, _, _ = model.generate(0)
    places = (whole * model.tokens ** torch.arange(CHAIN - 1, -1, -1)).sum(1)
    counts = torch.bincount(places, minlength=model.tokens**CHAIN)
    assert chi_square(counts, model.list_probabilities()) > 1e-4
    for depth in (1, 3, 7):
        text, accepted, _ = model.generate(depth)
        assert torch.equal(text, whole), depth
        assert accepted > SAMPLES / 2


@pytest.mark.parametrize(
    ("samples", "drafts", "counts", "bonus", "want"),
    [
        ([[5, 6]], [[5, 6]], [2], [9], [[5, 6, 9]]),
        ([[5, 7]], [[5, 6]], [2], [9], [[5, 7, -1]]),
        ([[4, 6]], [[5, 6]], [2], [9], [[4, -1, -1]]),
        ([[5], [], [1, 2]], [[5], [], [1, 3]], [1, 0, 2], [9, 8, 7], [
            [5, 9, -1], [8, -1, -1], [1, 2, -1],
        ]),
        ([[], []], [[], []], [0, 0], [9, 8], [[9], [8]]),
        ([[3]], [[-1]], [1], [9], [[3, -1]]),
    ],
)  # fmt: skip
def test_drafts_are_accepted_up_to_the_first_that_was_not_sampled(
    samples: Any, drafts: Any, counts: list[int], bonus: list[int], want: list[list[int]]
) -> None:
    out = accept_drafts(
        torch.tensor(list(chain.from_iterable(samples)), dtype=torch.int64),
        torch.tensor(list(chain.from_iterable(drafts)), dtype=torch.int32),
        torch.tensor(counts).cumsum(0).to(torch.int32),
        max(counts),
        torch.tensor(bonus, dtype=torch.int32).unsqueeze(1),
    )
    assert out.dtype == torch.int32
    assert out.tolist() == want


def draw(logits: torch.Tensor, seeds: Any, positions: Any) -> torch.Tensor:
    given = (torch.tensor(list(values), dtype=torch.int64) for values in (seeds, positions))
    return position_noise.sample(logits, *given)


def chi_square(counts: torch.Tensor, chances: torch.Tensor) -> float:
    """The p-value; cells with fewer than five expected share one."""
    total = counts.sum()
    common = chances * total >= 5
    seen = torch.cat([counts[common], counts[~common].sum().view(1)]).double()
    wanted = torch.cat([chances[common], chances[~common].sum().view(1)]).double() * total
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor(len(seen) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))
