"""Which requests are near the end of their ``thinking_token_budget``.

vLLM ends a reasoning whose budget is used up by forcing the tokens of its end. It counts them
right on the plain path, but beside drafts it may force the end a second time where the model has
just written one itself. So a request verifies no drafts while the end of its budget is near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm.config import VllmConfig
from vllm.v1.request import Request


class ThinkingBudgetTracker:
    """Follows the reasoning of every request with a budget; ``depth`` is the engine's K."""

    def __init__(self, vllm_config: VllmConfig, depth: int) -> None:
        config = vllm_config.reasoning_config
        self._start = list(config.reasoning_start_token_ids or ()) if config else []
        self._end = list(config.natural_reasoning_end_token_ids or ()) if config else []
        forced = list(config.reasoning_end_token_ids or ()) if config else []
        self._margin = 2 * (depth + 1) + len(self._start) + len(forced)
        self._thoughts: dict[str, ReasoningSpan] = {}

    def is_near_end(self, request: Request) -> bool:
        """Whether a step could use the budget up, two steps ahead for asynchronous scheduling."""
        params = request.sampling_params
        budget = params.thinking_token_budget if params else None
        if budget is None or not (self._start and self._end):
            return False
        thought = self._thoughts.setdefault(
            request.request_id, ReasoningSpan(self._start, self._end)
        )
        thought.read(request.all_token_ids)
        return not thought.ended and budget - thought.length <= self._margin

    def forget_others(self, requests: Mapping[str, Request]) -> None:
        """Forget all others."""
        for req_id in self._thoughts.keys() - requests.keys():
            del self._thoughts[req_id]


class ReasoningSpan:
    """The reasoning in a sequence of tokens that grows."""

    def __init__(self, start: list[int], end: list[int]) -> None:
        self._start, self._end = start, end
        self._read = 0
        self._begin: int | None = None
        self.ended = False

    @property
    def length(self) -> int:
        """Tokens since it began; 0 before."""
        return 0 if self._begin is None else self._read - self._begin

    def read(self, tokens: Sequence[int]) -> None:
        for at in range(self._read + 1, len(tokens) + 1):
            if self._ends_with(tokens, at, self._start):
                self._begin, self.ended = at, False
            elif self._begin is not None and self._ends_with(tokens, at, self._end):
                self._begin, self.ended = None, True
        self._read = len(tokens)

    @staticmethod
    def _ends_with(tokens: Sequence[int], at: int, marker: list[int]) -> bool:
        return (
            tokens[at - 1] == marker[-1] and list(tokens[max(0, at - len(marker)) : at]) == marker
        )
