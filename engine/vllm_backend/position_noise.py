"""Sampling noise that depends only on the seed, the position and the token.

A sample is the token with the greatest logit plus Gumbel noise (Maddison et al., 2014, "A*
sampling"), which is exactly a draw from the softmax. Here the noise is a hash of (seed, position,
token), so the token at a position depends neither on earlier draws nor on the number of positions
that one step computes. A draft token is accepted if it equals the sample. For a draft chosen
greedily, this happens with its probability under the target, as in rejection sampling.

The hash is MurmurHash3 (x86, 32 bits) of four words: two of the seed, the position, and the token.
vLLM's second model runner has the same hash (``vllm/v1/worker/gpu/sample/gumbel.py``), so both
runners draw the same bits on every device. Tensors of int32 hold the words, with wrap-around.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

BLOCK = 1 << 18
"""Scores computed at a time on a CPU, so that intermediate values stay in its caches."""


def signed(word: int) -> int:
    """Return the int32 with the same bits."""
    return word - (1 << 32) if word >> 31 else word


FIRST, SECOND = signed(0xCC9E2D51), signed(0x1B873593)
STEP = signed(0xE6546B64)
FINAL = signed(0x85EBCA6B), signed(0xC2B2AE35)
WORD = 0xFFFF
BELOW_ONE = 1 - 2.0**-24
"""The greatest float32 below 1. At 1 the noise would be infinite."""


def sample(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return a token for each row of ``logits`` (float32), after the temperature has been applied.

    ``seeds`` and ``positions`` are int64, one for each row.
    """
    return add_noise(logits, seeds, positions).argmax(-1)


def add_noise(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the scores whose greatest in each row is the sample."""
    rows, vocabulary = logits.shape
    prefixes = _hash_prefixes(seeds, positions).unsqueeze(1)
    table = _hash_tokens(vocabulary, logits.device)
    scores = torch.empty_like(logits)
    width = max(1, BLOCK // max(1, rows)) if logits.device.type == "cpu" else vocabulary
    for begin in range(0, vocabulary, width):
        block = slice(begin, begin + width)
        waits = _draw_waits(prefixes ^ table[block])
        torch.sub(logits[:, block], waits.log_(), out=scores[:, block])
    return scores


def draw_noise(seed: int, position: int, tokens: Sequence[int]) -> list[float]:
    """Return the noise of single tokens, for inspecting a text."""
    key = torch.tensor([seed]), torch.tensor([position])
    words = _rotate(_mix_word(torch.tensor(tokens, dtype=torch.int32)), 13)
    noise: list[float] = _draw_waits(_hash_prefixes(*key) ^ words).log().neg().tolist()
    return noise


def count_accepted(
    samples: torch.Tensor, drafts: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Count the drafts, from the first, that equal the tokens sampled in their places.

    ``samples`` and ``drafts`` have a row for each request; its first ``counts`` drafts are real.
    """
    places = torch.arange(drafts.shape[1], device=drafts.device)
    matches = (samples == drafts) & (places < counts.unsqueeze(1))
    return matches.cumprod(1).sum(1)


def _hash_prefixes(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the hash of seeds and positions, ready for the token's word."""
    state = torch.zeros_like(seeds, dtype=torch.int32)
    for word in (seeds, seeds >> 32, positions):
        state = _rotate(state ^ _mix_word(_to_word(word)), 13) * 5 + STEP
    return _rotate(state, 13)


@lru_cache(maxsize=4)
def _hash_tokens(vocabulary: int, device: torch.device) -> torch.Tensor:
    """Return the token's word for every token, already rotated: rotation distributes over exclusive
    or."""
    tokens = torch.arange(vocabulary, dtype=torch.int32, device=device)
    return _rotate(_mix_word(tokens), 13)


def _draw_waits(state: torch.Tensor) -> torch.Tensor:
    """Return exponentially distributed numbers. Overwrites ``state``.

    A Gumbel number is minus the logarithm of an exponential one. The greatest samples come from
    small numbers, which float32 represents finely.
    """
    state.mul_(5).add_(STEP).bitwise_xor_(16)
    buffer = _shift(state, 16)
    state.bitwise_xor_(buffer).mul_(FINAL[0])
    state.bitwise_xor_(_shift(state, 13, buffer)).mul_(FINAL[1])
    state.bitwise_xor_(_shift(state, 16, buffer))
    uniforms = _shift(state, 16, buffer).float().mul_(2.0**-16)
    uniforms.add_(state.bitwise_and_(WORD).float().add_(0.5).mul_(2.0**-32))
    return uniforms.clamp_(max=BELOW_ONE).neg_().log1p_().neg_()


def _mix_word(word: torch.Tensor) -> torch.Tensor:
    return _rotate(word * FIRST, 15) * SECOND


def _rotate(word: torch.Tensor, num_bits: int) -> torch.Tensor:
    return (word << num_bits) | _shift(word, 32 - num_bits)


def _shift(word: torch.Tensor, num_bits: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """Shift right and fill with zeros, because a shift of int32 would repeat the sign."""
    result = torch.bitwise_right_shift(word, num_bits, out=out)
    return result.bitwise_and_((1 << (32 - num_bits)) - 1)


def _to_word(values: torch.Tensor) -> torch.Tensor:
    """Return the lower 32 bits."""
    return values.to(torch.int32)
