"""Metrics of the capture of requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from eaglegate.observability.metrics.base import MetricGroup, MetricScope

if TYPE_CHECKING:
    from eaglegate.features.capture.files import CaptureWriter


class CapturedRequests(MetricGroup):
    """The capture of requests (``--capture``); absent without one.

    Lost records: ``sum by (reason) (rate(eaglegate_capture_dropped_total[5m]))``. ``queue``: the
    writer did not keep up. ``disk``: a write failed. ``size``: the record exceeds the size limit of
    a file. ``slow``: its redaction took too long. ``fault``: an error of the gateway.
    """

    def __init__(self, scope: MetricScope, writer: CaptureWriter | None = None) -> None:
        self._writer = writer
        super().__init__(scope)

    def declare(self) -> None:
        for name, help_ in (("records", "Requests"), ("bytes", "Bytes")):
            self.number_metric(
                f"capture_{name}_total",
                f"{help_} written to the capture",
                partial(self._find, name),
            )
        self.labelled_metric(
            "capture_dropped_total",
            "Requests selected for the capture but not written, by reason",
            "reason",
            lambda: {} if self._writer is None else self._writer.dropped,
        )

    def _find(self, name: str) -> float | None:
        return getattr(self._writer, name, None)


GROUPS: tuple[type[MetricGroup], ...] = (CapturedRequests,)
