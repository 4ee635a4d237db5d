"""Metrics of the capture of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from eaglegate.observability.metrics.base import MetricGroup, MetricScope

if TYPE_CHECKING:
    from eaglegate.features.capture.files import CaptureCounts


class CapturedRequests(MetricGroup):
    """The capture of requests (``--capture``); absent without one.

    Lost records: ``sum by (reason) (rate(eaglegate_capture_dropped_total[5m]))``. ``queue``: the
    writer did not keep up. ``disk``: a write failed. ``size``: the record exceeds the size limit of
    a file. ``slow``: its redaction took too long. ``fault``: an error of the gateway.
    """

    def __init__(
        self, scope: MetricScope, read_counts: Callable[[], CaptureCounts] | None = None
    ) -> None:
        """``read_counts`` returns the counts; None without a capture."""
        self._read = read_counts
        super().__init__(scope)

    def declare(self) -> None:
        self.computed_metric(
            "capture_records_total", "Requests written to the capture", (), self._read_records
        )
        self.computed_metric(
            "capture_bytes_total", "Bytes written to the capture", (), self._read_bytes
        )
        self.computed_metric(
            "capture_dropped_total",
            "Requests selected for the capture but not written, by reason",
            ("reason",),
            self._read_dropped,
        )

    def _read_records(self) -> Iterator[tuple[tuple[()], float]]:
        if self._read is not None:
            yield (), self._read().records

    def _read_bytes(self) -> Iterator[tuple[tuple[()], float]]:
        if self._read is not None:
            yield (), self._read().bytes

    def _read_dropped(self) -> Iterator[tuple[tuple[str], float]]:
        if self._read is not None:
            for reason, count in self._read().dropped.items():
                yield (reason,), count


GROUPS: tuple[type[MetricGroup], ...] = (CapturedRequests,)
