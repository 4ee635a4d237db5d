"""What the gateway's own process uses of its limits."""

from __future__ import annotations

from collections.abc import Iterator

from observability.metrics.base import MetricGroup

HELP = {
    "connections": "Connections of clients",
    "connection_limit": "Connections of clients there may be",
    "memory_bytes": "Memory in use where it is tightest: control group, process tree",
    "memory_limit_bytes": "Memory there is, at that place",
    "memory_shedding": "1 while new work is refused for want of memory",
}


class Process(MetricGroup):
    """Connections and memory, and their limits.

    How full: ``eaglegate_memory_bytes / eaglegate_memory_limit_bytes``. Connections turned away:
    ``rate(eaglegate_requests_refused_total{code="too_many_connections"}[5m])``; work refused for
    want of memory has the code ``memory_pressure``.
    """

    def declare(self) -> None:
        for name, help_ in HELP.items():
            self._add(name, help_)

    def _add(self, name: str, help_: str) -> None:
        def read() -> Iterator[tuple[tuple[()], float]]:
            values = self.scope.process()
            if name in values:
                yield (), values[name]

        self.computed_metric(name, help_, (), read)
