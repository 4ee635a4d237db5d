"""How many tokens went in and came out."""

from __future__ import annotations

from observability.facts import DecodeProgress, RequestRecord
from observability.labels import Labels
from observability.metrics.base import MetricGroup


class Tokens(MetricGroup):
    """Prompt tokens (cached ones included), cached, completion (reasoning included), reasoning.

    Throughput: ``sum(rate(eaglegate_completion_tokens_total[1m]))``; share of prompts served from
    the prefix cache: ``rate(eaglegate_cached_tokens_total[5m])
    / rate(eaglegate_prompt_tokens_total[5m])``.
    Completion tokens count what the engine delivered, also for requests that were cut; the other
    three come from ``usage`` and so from choices that reached their end.
    """

    def declare(self) -> None:
        self._prompt = self.counter("prompt_tokens", "Prompt tokens of ended choices")
        self._cached = self.counter("cached_tokens", "Prompt tokens served from the prefix cache")
        self._completion = self.counter("completion_tokens", "Output tokens delivered")
        self._reasoning = self.counter("reasoning_tokens", "Output tokens inside reasoning")

    def record_progress(self, progress: DecodeProgress) -> None:
        self._completion(*progress.slices.labels).inc(progress.whole.tokens)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        usages = [c.usage for record in records for c in record.choices if c.usage is not None]
        self._prompt(*labels).inc(sum(usage.prompt for usage in usages))
        self._cached(*labels).inc(sum(usage.cached for usage in usages))
        self._reasoning(*labels).inc(sum(usage.reasoning for usage in usages))
