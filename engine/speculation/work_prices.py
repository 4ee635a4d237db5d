"""What work beside a latency class adds to a step, learnt by recursive least squares.

Work is priced in steps of the latency class alone, so that the speed of the machine does not
matter.
"""

from __future__ import annotations

from typing import NamedTuple

GUESS = (0.02, 0.01, 0.1, 0.005)
"""First guess of what a request, a draft token, any prompt and a prompt token add, as shares of a
step alone."""
PRICED = ("request", "draft_token", "any_prompt", "prompt_token")
NOISE = 0.2
"""Typical error of a step's time, as a share of it."""
DRIFT = 0.01
"""Drift of what a piece of work adds in a step, relative to the larger of its value and guess."""
WIDEST = 0.5
"""Error of a step's time beyond which it counts as an outlier."""


Kind = tuple[int, int, int]
"""Kind of a step alone: requests of the latency class, drafts that each of them may verify, and
drafts that the step makes for each.
"""


class SharedStep(NamedTuple):
    """Work in a step beside that of the latency class."""

    kind: Kind
    rows: int
    drafts: int
    prompt: int
    follows_alone: bool = False
    """Whether the step before was the latency class's alone."""

    @property
    def is_alone(self) -> bool:
        return not (self.rows or self.prompt)

    @property
    def is_measured(self) -> bool:
        """Whether no other work, of this step or the one before, is in its time."""
        return self.is_alone and self.follows_alone


class WorkPrices:
    """What other work adds to a step, in steps of the latency class alone.

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
        """Prompt tokens that a step can read in so much time."""
        return int(max(0.0, time - self.prices[2]) / self.prices[3] + 1e-9)

    def observe(self, step: SharedStep, added: float) -> None:
        """Learn from the time that a step took more than one alone."""
        work = [float(step.rows), float(step.drafts), float(step.prompt > 0), float(step.prompt)]
        for i, guess in enumerate(GUESS):
            self._covariance[i][i] += (DRIFT * max(self.prices[i], guess)) ** 2
        expected = sum(price * amount for price, amount in zip(self.prices, work, strict=True))
        error = min(max(added - expected, -WIDEST - expected), WIDEST + expected)
        across = [sum(c * a for c, a in zip(row, work, strict=True)) for row in self._covariance]
        noise = (NOISE * (1 + expected)) ** 2
        variance = noise + sum(a * c for a, c in zip(work, across, strict=True))
        gains = [one / variance for one in across]
        for i, gain in enumerate(gains):
            self.prices[i] = max(self.prices[i] + gain * error, GUESS[i] / 100)
            for j, other in enumerate(across):
                self._covariance[i][j] -= gain * other
