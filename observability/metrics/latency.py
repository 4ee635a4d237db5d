"""How fast: first token, tokens after it, steps, and what one user sees."""

from __future__ import annotations

from observability.facts import DecodeProgress, RequestRecord
from observability.labels import Labels
from observability.metrics.base import LONG_S, SHORT_S, MetricGroup


class Latency(MetricGroup):
    """TTFT = first output token (reasoning counts) - arrival.
    TPOT = (end - first token) / (N - 1), one observation per choice with N > 1.

    p95 TTFT: ``histogram_quantile(0.95,
    sum by (le) (rate(eaglegate_time_to_first_token_seconds_bucket[5m])))``
    """

    def declare(self) -> None:
        self._ttft = self.histogram(
            "time_to_first_token_seconds", "First output token - arrival", LONG_S
        )
        self._tpot = self.histogram(
            "time_per_output_token_seconds", "(End - first token) / (N - 1), per choice", SHORT_S
        )

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        self._ttft.observe(labels, [r.ttft for r in records if r.ttft is not None])
        self._tpot.observe(labels, collect_tpots(records))


class StepLatency(MetricGroup):
    """Gap between steps as they come out of the engine: about TPOT x acceptance length under
    speculation, and never to be called TPOT.

    ``histogram_quantile(0.95, sum by (le) (rate(eaglegate_inter_step_seconds_bucket[5m])))``
    """

    def declare(self) -> None:
        self._gaps = self.histogram(
            "inter_step_seconds", "Time between two steps of a choice", SHORT_S
        )

    def record_progress(self, progress: DecodeProgress) -> None:
        self._gaps.observe(progress.slices.labels, progress.gaps)


class UserSpeed(MetricGroup):
    """What one reader gets: 1 / TPOT, in tokens per second.

    ``histogram_quantile(0.1,
    sum by (le) (rate(eaglegate_user_tokens_per_second_bucket[5m])))`` is the slow tail.
    """

    BOUNDS = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000)

    def declare(self) -> None:
        self._speed = self.histogram("user_tokens_per_second", "1 / TPOT, per choice", self.BOUNDS)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        self._speed.observe(labels, [1 / tpot for tpot in collect_tpots(records) if tpot])


def collect_tpots(records: list[RequestRecord]) -> list[float]:
    """One value per choice that has one."""
    choices = (choice for record in records for choice in record.choices)
    return [choice.tpot for choice in choices if choice.tpot is not None]
