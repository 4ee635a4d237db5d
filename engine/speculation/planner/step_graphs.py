"""CUDA graphs of decode steps, because of which the cost of a step is not linear.

A graph is captured for certain numbers of tokens. A step runs with the next larger one and costs as
much as the padded step. A FULL graph contains a whole step. It is captured for steps in which every
request verifies the same number of drafts, at some depths. Any other step runs with PIECEWISE
graphs, which leave out attention and so launch kernels in every layer. A step with more tokens than
any graph runs without graphs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class GraphMode(IntEnum):
    """Graph mode of a step, fastest first."""

    FULL = 0
    PIECEWISE = 1
    NONE = 2


@dataclass(frozen=True, slots=True)
class StepGraphs:
    """Captured graphs: ``widths``, the draft tokens per request with FULL graphs, and ``sizes``,
    the numbers of tokens, ascending."""

    widths: tuple[int, ...]
    sizes: tuple[int, ...]

    def pad(self, tokens: float) -> float:
        """Return the number of tokens that a step of ``tokens`` computes.

        >>> StepGraphs((0, 3), (4, 8, 16)).pad(5), StepGraphs((0, 3), (4, 8, 16)).pad(17)
        (8, 17)
        """
        index = bisect_left(self.sizes, tokens)
        return self.sizes[index] if index < len(self.sizes) else tokens

    def find_mode(self, widths: Sequence[int]) -> GraphMode:
        """Return the mode of a step that verifies ``widths[i]`` draft tokens of request i.

        >>> graphs = StepGraphs((0, 3), (4, 8, 16))
        >>> [graphs.find_mode(widths).name for widths in ([3, 3], [3, 2], [3] * 5)]
        ['FULL', 'PIECEWISE', 'NONE']
        """
        if not widths or sum(widths) + len(widths) > self.sizes[-1]:
            return GraphMode.NONE
        common_width = widths[0]
        uniform = common_width in self.widths and all(width == common_width for width in widths)
        return GraphMode.FULL if uniform else GraphMode.PIECEWISE
