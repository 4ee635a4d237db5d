"""Reads a running gateway's operator data: ``/debug`` as JSON, and ``/metrics``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.request import Request

from eaglegate.server.cli.client import CallFailed, complete_url, fetch

Row = Mapping[str, Any]
TIMEOUT_S = 5.0
DENIED = (401, 403)
KEYS = "The gateway has keys: give an admin's with --key or EAGLEGATE_ADMIN_API_KEY."
ELSEWHERE = (
    "There are no operator pages here. With an admin port, give its address; the gateway prints "
    "it when it starts."
)
SAMPLE = re.compile(r"^eaglegate_([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class MetricsPage:
    """The gateway's own samples in ``/metrics``: name without prefix, labels, value."""

    samples: Sequence[tuple[str, Mapping[str, str], float]]

    @classmethod
    def parse(cls, text: str) -> MetricsPage:
        return cls(
            [
                (name, dict(LABEL.findall(labels)), float(value))
                for name, labels, value in SAMPLE.findall(text)
            ]
        )

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric's samples with these labels; None if there are none."""
        values = [value for _, value in self._select(name, labels)]
        return sum(values) if values else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a metric's samples by one label's value, without sums of zero."""
        sums: dict[str, float] = {}
        for sample_labels, value in self._select(name, {}):
            sums[sample_labels.get(label, "")] = sums.get(sample_labels.get(label, ""), 0.0) + value
        return {name: value for name, value in sums.items() if value}

    def _select(
        self, name: str, labels: Mapping[str, str]
    ) -> Iterator[tuple[Mapping[str, str], float]]:
        for sample_name, sample_labels, value in self.samples:
            if sample_name == name and labels.items() <= sample_labels.items():
                yield sample_labels, value


@dataclass(frozen=True)
class GatewayReading:
    """The state of a gateway at one moment."""

    speculation: Row
    """Answer of ``GET /debug/speculation``."""
    requests: Mapping[str, Sequence[Row]]
    """Answer of ``GET /debug/requests``; empty if the gateway keeps no requests."""
    metrics: MetricsPage


class GatewayReader:
    """Reads one gateway. Every method blocks for up to a few seconds and raises CallFailed."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = complete_url(url)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = timeout_s

    def read(self) -> GatewayReading:
        """Read everything that the command shows."""
        return GatewayReading(
            self._get_json("/debug/speculation"),
            self._get_known("/debug/requests") or {},
            MetricsPage.parse(self._get("/metrics").decode(errors="replace")),
        )

    def _get_known(self, path: str) -> Any:
        """Return the answer, or None if the gateway does not have this path."""
        try:
            return self._get_json(path)
        except CallFailed as error:
            if error.status == 404:
                return None
            raise

    def _get_json(self, path: str) -> Any:
        body = self._get(path)
        try:
            return json.loads(body)
        except ValueError:
            raise CallFailed(f"{self.url}{path} is not JSON: is this a gateway?") from None

    def _get(self, path: str) -> bytes:
        try:
            request = Request(self.url + path, headers=self._headers)
        except ValueError as error:
            raise CallFailed(str(error)) from None
        return fetch(request, self._timeout_s)


def explain_failure(error: CallFailed) -> str:
    """Explain why there is no reading, and what to do."""
    if error.status in DENIED:
        return f"{error} {KEYS}"
    return f"{error} {ELSEWHERE}" if error.status == 404 else str(error)
