"""CUDA graphs of decode steps: a step costs by steps, not by a line.

A graph is captured for some numbers of tokens, and a step runs with the next larger one: it costs
what the padded step costs. A FULL graph holds all of a step; it is captured for steps in which
every request verifies equally many drafts, of some depths. Any other step runs with PIECEWISE
graphs, which leave attention out and so launch kernels in every layer, or with none where it has
more tokens than any graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class GraphMode(IntEnum):
    """Graph mode of a step, the fastest first."""

    FULL = 0
    PIECEWISE = 1
    NONE = 2


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """``widths``: draft tokens per request that have FULL graphs; ``sizes``: tokens, ascending."""

    widths: tuple[int, ...]
    sizes: tuple[int, ...]

    def pad(self, tokens: float) -> float:
        """The tokens that a step of so many computes.

        >>> StepGraphs((0, 3), (4, 8, 16)).pad(5), StepGraphs((0, 3), (4, 8, 16)).pad(17)
        (8, 17)
        """
        at = bisect_left(self.sizes, tokens)
        return self.sizes[at] if at < len(self.sizes) else tokens

    def find_mode(self, widths: Sequence[int]) -> GraphMode:
        """Find the mode of a step that verifies so many draft tokens of each of its requests.

        >>> graphs = StepGraphs((0, 3), (4, 8, 16))
        >>> [graphs.find_mode(widths).name for widths in ([3, 3], [3, 2], [3] * 5)]
        ['FULL', 'PIECEWISE', 'NONE']
        """
        if not widths or sum(widths) + len(widths) > self.sizes[-1]:
            return GraphMode.NONE
        first = widths[0]
        uniform = first in self.widths and all(width == first for width in widths)
        return GraphMode.FULL if uniform else GraphMode.PIECEWISE
