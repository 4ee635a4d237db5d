"""Where a model reasons in a growing sequence of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class ReasoningSpan:
    """The reasoning in a growing sequence of tokens."""

    def __init__(self, start: list[int], end: list[int], begin_at: int = 0) -> None:
        """Start outside of reasoning. Tokens before ``begin_at`` are not read."""
        self._start, self._end = start, end
        self._num_read = begin_at
        self._begin: int | None = None

    @property
    def length(self) -> int | None:
        """Number of tokens since the reasoning began; None outside of reasoning."""
        return None if self._begin is None else self._num_read - self._begin

    def read(self, tokens: Sequence[int]) -> None:
        for index in range(self._num_read + 1, len(tokens) + 1):
            if self._ends_with(tokens, index, self._start):
                self._begin = index
            elif self._begin is not None and self._ends_with(tokens, index, self._end):
                self._begin = None
        self._num_read = len(tokens)

    @staticmethod
    def _ends_with(tokens: Sequence[int], end: int, marker: list[int]) -> bool:
        return (
            tokens[end - 1] == marker[-1]
            and list(tokens[max(0, end - len(marker)) : end]) == marker
        )
