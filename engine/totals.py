"""Sums of accounts, and the ratios that follow from them (``speculation/accounts/``)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from typing import Any

WORTHLESS = 1.2
"""Acceptance length below which a draft can hardly pay for itself at any depth."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over any number of requests. Add them with ``+``. Ratios without data are None."""

    requests: int = 0
    tokens: int = 0
    """N, the output tokens."""
    first_tokens: int = 0
    """Delivered output tokens from prefill, at most one per request."""
    verify_steps: int = 0
    """D, the verify steps."""
    proposed: int = 0
    """P, the proposed draft tokens."""
    accepted: int = 0
    """A, the accepted and delivered draft tokens."""
    cut: int = 0
    """Draft tokens that the target accepted and a stop or a token limit removed."""
    lost_bonus: int = 0
    """Decode steps whose bonus token a stop or a token limit removed."""
    rejected: int = 0
    """D_0: verify steps in which every draft was rejected."""
    undrafted: int = 0
    """F, reason ``undrafted``: the engine proposed nothing."""
    off: int = 0
    """F, reason ``off``: speculation was switched off."""
    accepted_at: tuple[int, ...] = ()
    """A_1, A_2, ...: verify steps that delivered the draft at this position."""
    proposed_at: tuple[int, ...] = ()
    """Verify steps that drafted this position. Falls with the position if depths differ."""
    lookup_steps: int = 0
    """Verify steps among D whose draft tokens came from a lookup."""
    lookup_proposed: int = 0
    """Draft tokens among P that came from a lookup."""
    lookup_accepted: int = 0
    """Draft tokens among A that came from a lookup."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(_add, _READ(self), _READ(other)))

    @property
    def plain_steps(self) -> int:
        """F: decode steps without any draft."""
        return self.undrafted + self.off

    @property
    def decode_steps(self) -> int:
        """D + F, the decode steps."""
        return self.verify_steps + self.plain_steps

    @property
    def wasted(self) -> int:
        """Draft tokens that the target rejected."""
        return self.proposed - self.accepted - self.cut

    @property
    def mean_depth(self) -> float | None:
        """P / (D + F): draft tokens per decode step."""
        return self.proposed / self.decode_steps if self.decode_steps else None

    @property
    def imbalance(self) -> int:
        """Delivered tokens that no step explains; 0 if the account is exact."""
        num_explained = self.accepted + self.decode_steps - self.lost_bonus + self.first_tokens
        return self.tokens - num_explained

    @property
    def acceptance_length(self) -> float | None:
        """1 + A / D: tokens per verify step, bonus included."""
        return 1 + self.accepted / self.verify_steps if self.verify_steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """A / P. It falls as K grows, so never compare it across K."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """a_i = A_i / D, for each position."""
        return tuple(count / self.verify_steps for count in self.accepted_at)

    @property
    def conditional_acceptance(self) -> tuple[float | None, ...]:
        """c_i = A_i / A_(i-1), c_1 = a_1; None if the position before was never accepted."""
        bases = (self.verify_steps, *self.accepted_at)
        return tuple(
            count / base if base else None
            for count, base in zip(self.accepted_at, bases, strict=False)
        )

    @property
    def fallback_ratio(self) -> float | None:
        """(D_0 + F) / (D + F), the share of decode steps without an accepted draft token."""
        steps = self.decode_steps
        return (self.rejected + self.plain_steps) / steps if steps else None

    @property
    def fallback_by_reason(self) -> dict[str, float]:
        """Each reason's part of the fallback ratio. The parts add up to the ratio. Empty without
        steps."""
        steps = self.decode_steps
        if not steps:
            return {}
        counts = {"rejected": self.rejected, "undrafted": self.undrafted, "off": self.off}
        return {reason: count / steps for reason, count in counts.items()}

    @property
    def histogram(self) -> tuple[int, ...]:
        """Verify steps that delivered exactly 0, 1, 2, ... draft tokens. They add up to D."""
        at_least = (self.verify_steps, *self.accepted_at, 0)
        return tuple(at_least[i] - at_least[i + 1] for i in range(len(at_least) - 1))


_READ = attrgetter(*Totals.__slots__)


def _add(count: Any, addend: Any) -> Any:
    if isinstance(count, tuple):
        return tuple(a + b for a, b in zip_longest(count, addend, fillvalue=0))
    return count + addend
