"""The exact account of one request's decode steps, and sums of accounts.

For one request (docs/metrics.md): N output tokens; D verify steps; P draft tokens proposed in them;
A accepted and delivered; A_i verify steps that delivered position i; D_0 verify
steps in which every draft was rejected; F decode steps without a draft, by reason. The first token
comes from prefill and every decode step adds its accepted drafts and one bonus token, so

    A + D + F = N - 1

unless a stop or a token limit cut the end. Accepted drafts that were cut are counted in ``cut`` and
bonus tokens in ``lost_bonus``, and then A + D + F - lost_bonus = N - 1 (N - 0 if even the first
token was cut).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter

from msgspec.structs import replace

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import DecodeStep, Drafter, Step, UndraftedReason

_DELIVERED = attrgetter("delivered")


class Account:
    """Account of one request, updated with each step; ``totals`` is available at any time."""

    def __init__(self) -> None:
        self.tokens = 0
        """N, the tokens delivered so far."""
        self._decode: list[DecodeStep] = []

    def add(self, step: Step) -> None:
        """Add one engine step. Its tokens beyond those of ``decode`` came from prefill."""
        self._decode += step.decode
        self.tokens += len(step.token_ids)

    def trim(self, delivered_tokens: int) -> None:
        """Keep the first ``delivered_tokens`` tokens, which reached the client.

        This is for a gateway that matched a stop string inside a step. A larger number changes
        nothing.
        """
        surplus = self.tokens - delivered_tokens
        if surplus > 0:
            self._decode = list(trim_decode(self._decode, surplus))
            self.tokens = delivered_tokens

    @property
    def decode_steps(self) -> tuple[DecodeStep, ...]:
        return tuple(self._decode)

    @property
    def totals(self) -> Totals:
        num_decoded = sum(map(_DELIVERED, self._decode))
        return sum_steps(self._decode, first_tokens=self.tokens - num_decoded)


def sum_steps(steps: Iterable[DecodeStep], *, first_tokens: int = 0, requests: int = 1) -> Totals:
    """Sum decode steps of one or many requests.

    Engines return the same object for the same account (``intern_step``), so a long answer has only
    a few different ones. Each is evaluated once and multiplied by its count.
    """
    kinds: dict[int, tuple[DecodeStep, int]] = {}
    for step in steps:
        key = id(step)
        kinds[key] = step, kinds[key][1] + 1 if key in kinds else 1
    tokens, verify_steps, lost_bonus, rejected, undrafted, off = first_tokens, 0, 0, 0, 0, 0
    proposed = accepted = cut = max_depth = 0
    lookup_steps = lookup_proposed = lookup_accepted = 0
    for step, count in kinds.values():
        tokens += count * step.delivered
        lost_bonus += count * (step.delivered == step.accepted)
        undrafted += count * (step.undrafted is UndraftedReason.REFUSED)
        off += count * (step.undrafted in (UndraftedReason.OFF, UndraftedReason.PLANNED))
        if not step.drafted:
            continue
        verify_steps += count
        proposed += count * step.drafted
        accepted += count * step.accepted
        cut += count * step.cut
        rejected += count * (step.accepted + step.cut == 0)
        max_depth = max(max_depth, step.drafted)
        if step.drafter is Drafter.LOOKUP:
            lookup_steps += count
            lookup_proposed += count * step.drafted
            lookup_accepted += count * step.accepted
    verify = [(step, count) for step, count in kinds.values() if step.drafted]
    return Totals(
        requests=requests,
        tokens=tokens,
        first_tokens=min(first_tokens, requests),
        verify_steps=verify_steps,
        proposed=proposed,
        accepted=accepted,
        cut=cut,
        lost_bonus=lost_bonus,
        rejected=rejected,
        undrafted=undrafted,
        off=off,
        accepted_at=_count_reaching([(step.accepted, count) for step, count in verify], max_depth),
        proposed_at=_count_reaching([(step.drafted, count) for step, count in verify], max_depth),
        lookup_steps=lookup_steps,
        lookup_proposed=lookup_proposed,
        lookup_accepted=lookup_accepted,
    )


intern_step = lru_cache(maxsize=4096)(DecodeStep)
"""Return ``DecodeStep(...)``, the same object for the same account."""


def trim_step(step: DecodeStep, tokens: int) -> DecodeStep:
    """Return ``step`` without its last ``tokens`` delivered tokens. The bonus token goes first."""
    num_delivered = step.delivered - tokens
    num_accepted = min(step.accepted, num_delivered)
    num_cut = step.cut + step.accepted - num_accepted
    return intern_step(
        step.drafted,
        num_accepted,
        num_delivered,
        num_cut,
        step.undrafted,
        step.planned,
        step.drafter,
    )


def trim_decode(steps: Iterable[DecodeStep], tokens: int) -> tuple[DecodeStep, ...]:
    """Return ``steps`` without their last ``tokens`` delivered tokens, or without any if there are
    fewer."""
    result = list(steps)
    for index in range(len(result) - 1, -1, -1):
        if tokens <= 0:
            break
        count = min(tokens, result[index].delivered)
        result[index] = trim_step(result[index], count)
        tokens -= count
    return tuple(result)


def spread_account(steps: Sequence[Step]) -> list[Step]:
    """Return ``steps`` with an account that came with the last step spread over all of them.

    The account covers the answer's last tokens. Each decode step goes to the step that delivered
    its last token.
    """
    result = list(steps)
    if not result or sum(s.delivered for s in result[-1].decode) <= len(result[-1].token_ids):
        return result
    decode_of: list[list[DecodeStep]] = [[] for _ in result]
    # Both lists end with the same token, but may begin at different ones, because the account may
    # not cover the prefill. So both are read from the end. Offsets count from the answer's end:
    # ``end`` follows the decode step's last token, ``begin`` is the first token of the step.
    last_index = index = len(result) - 1
    end, begin = 0, -len(result[last_index].token_ids)
    for decode in reversed(result[last_index].decode):
        # A decode step that delivered nothing, cut by a stop, stays with the step after it.
        while end <= begin and decode.delivered and index > 0:
            index -= 1
            begin -= len(result[index].token_ids)
        decode_of[index].append(decode)
        end -= decode.delivered
    return [
        replace(
            step, decode=(*(step.decode if index != last_index else ()), *reversed(decode_steps))
        )
        for index, (step, decode_steps) in enumerate(zip(result, decode_of, strict=True))
    ]


def _count_reaching(counts: Iterable[tuple[int, int]], max_depth: int) -> tuple[int, ...]:
    """Count the entries that reach 1, 2, ..., ``max_depth``. ``counts`` are pairs (height, number
    of entries)."""
    totals = [0] * max_depth
    for height, count in counts:
        for position in range(height):
            totals[position] += count
    return tuple(totals)
