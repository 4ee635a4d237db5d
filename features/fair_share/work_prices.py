"""Time that other work adds to a step of a latency class, learnt by recursive least squares.

Work is priced in steps of the latency class alone, so that the speed of the machine does not
matter.
"""

from __future__ import annotations

from typing import NamedTuple

GUESS = (0.02, 0.01, 0.1, 0.005)
"""Initial prices of a request, a draft token, any prompt and a prompt token, as shares of a step
alone."""
PRICED = ("request", "draft_token", "any_prompt", "prompt_token")
NOISE = 0.2
"""Typical relative error of a step's time."""
DRIFT = 0.01
"""Drift of a price in a step, relative to the larger of its value and guess."""
WIDEST = 0.5
"""Limit on the error of a step's time. Larger errors count as outliers."""


Kind = tuple[int, int, int]
"""Kind of a step alone, as (requests of the latency class, drafts that each may verify, drafts that
the step makes for each).
"""


class SharedStep(NamedTuple):
    """Work in a step other than that of the latency class."""

    kind: Kind
    rows: int
    drafts: int
    prompt: int
    follows_alone: bool = False
    """True if the previous step ran the latency class alone."""

    @property
    def is_alone(self) -> bool:
        return not (self.rows or self.prompt)

    @property
    def is_measured(self) -> bool:
        """True if the time contains no other work, of this step or the one before."""
        return self.is_alone and self.follows_alone


class WorkPrices:
    """Prices of other work in a step, in steps of the latency class alone.

    The prices of a request, a draft token, any prompt and a prompt token are the state of a Kalman
    filter, and never negative.
    """

    def __init__(self) -> None:
        self.prices = [*GUESS]
        self._covariance = [
            [(2 * guess) ** 2 if i == j else 0.0 for j in range(len(GUESS))]
            for i, guess in enumerate(GUESS)
        ]

    def get_rows(self, rows: int, drafts: int) -> float:
        return self.prices[0] * rows + self.prices[1] * drafts

    def get_prompt(self, tokens: int) -> float:
        return self.prices[2] * (tokens > 0) + self.prices[3] * tokens

    def count_prompt_tokens(self, time: float) -> int:
        """Return the number of prompt tokens that a step can read in ``time``."""
        return int(max(0.0, time - self.prices[2]) / self.prices[3] + 1e-9)

    def observe(self, step: SharedStep, added_s: float) -> None:
        """Learn from the additional time of a step compared with a step alone."""
        work = [float(step.rows), float(step.drafts), float(step.prompt > 0), float(step.prompt)]
        for i, guess in enumerate(GUESS):
            self._covariance[i][i] += (DRIFT * max(self.prices[i], guess)) ** 2
        expected_s = sum(price * amount for price, amount in zip(self.prices, work, strict=True))
        error = min(max(added_s - expected_s, -WIDEST - expected_s), WIDEST + expected_s)
        cross_covariance = [
            sum(c * a for c, a in zip(row, work, strict=True)) for row in self._covariance
        ]
        noise = (NOISE * (1 + expected_s)) ** 2
        variance = noise + sum(a * c for a, c in zip(work, cross_covariance, strict=True))
        gains = [covariance / variance for covariance in cross_covariance]
        for i, gain in enumerate(gains):
            self.prices[i] = max(self.prices[i] + gain * error, GUESS[i] / 100)
            for j, column_covariance in enumerate(cross_covariance):
                self._covariance[i][j] -= gain * column_covariance
