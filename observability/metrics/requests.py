"""How many requests, with what outcome, and who was turned away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from observability.facts import RequestRecord
from observability.labels import LABELS, CappedNames, KnownNames, Labels, name_api
from observability.metrics.base import LONG_S, MetricGroup


class Requests(MetricGroup):
    """Requests by API and outcome, those running, and how long they took.

    Error ratio: ``sum(rate(eaglegate_requests_total{outcome=~"engine|timeout|error"}[5m]))
    / sum(rate(eaglegate_requests_total[5m]))``. A client that leaves is not an error of ours.
    """

    def declare(self) -> None:
        self._total = self.counter(
            "requests", "Requests that ended, by API and outcome", (*LABELS, "api", "outcome")
        )
        self.computed_metric(
            "requests_running", "Requests in the engine now", LABELS, self._running
        )
        self._duration = self.histogram(
            "request_duration_seconds", "Arrival to end of a request", LONG_S
        )
        self._known: set[Labels] = set()

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        self._known.add(labels)
        for (name, outcome), count in Counter((r.facts.api, r.ending) for r in records).items():
            self._total(*labels, name_api(name), outcome.value).inc(count)
        self._duration.observe(labels, [record.duration for record in records])

    def _running(self) -> Iterator[tuple[Labels, float]]:
        now = Counter(self.scope.running())
        self._known |= now.keys()
        return ((labels, now[labels]) for labels in self._known)


class Refusals(MetricGroup):
    """Requests refused before they reached the engine, by error code.

    Shedding: ``sum(rate(eaglegate_requests_refused_total{code="queue_full"}[5m]))``.
    """

    def declare(self) -> None:
        self._codes = CappedNames(40)
        self._refused = self.counter(
            "requests_refused", "Requests turned away, by API and error code", ("api", "code")
        )

    def record_refusal(self, where: str, code: str) -> None:
        self._refused(name_api(where), self._codes(code)).inc()


FIELDS = (
    "cache_prompt", "client_metadata", "enable_thinking", "extra_body", "format", "guardrails",
    "input_type", "keep_alive", "logprob_token_ids", "models", "num_ctx", "options", "plugins",
    "preset", "provider", "reasoning", "repeat_penalty", "route", "slot_id", "stream_interval",
    "suffix", "thinking", "transforms", "typical_p", "usage", "verbose", "watermarking",
    "web_search_options", "tools[].cache_control", "tools[].defer_loading", "tools[].strict",
)  # fmt: skip
"""Fields of other servers and of hosted APIs, that may be label values."""
HOSTED_TOOL = "hosted_tool"


class IgnoredFields(MetricGroup):
    """Fields of requests that were answered without them: unknown ones, and hosted tools.

    ``topk(5, sum by (field) (rate(eaglegate_ignored_fields_total[1h])))``
    """

    def declare(self) -> None:
        self._known = KnownNames.of(FIELDS)
        help_ = "Request fields ignored, by API and name; unlisted names are other"
        self._ignored = self.counter("ignored_fields", help_, ("api", "field"))

    def record_ignored_fields(self, where: str, names: Iterable[str]) -> None:
        for name in names:
            self._ignored(name_api(where), self._field(name)).inc()

    def _field(self, name: str) -> str:
        hosted = name.startswith("tools[") and not name.startswith("tools[].")
        return HOSTED_TOOL if hosted else self._known(name)


class Queue(MetricGroup):
    """The queue in front of the engine, and its bounds: ``running`` sequences in the engine,
    ``queued`` requests, ``queued_tokens`` of their prompts.

    How full: ``eaglegate_queue_requests / on () eaglegate_admission_limit{bound="queued"}``
    """

    def declare(self) -> None:
        self._gauge("queue_requests", "Requests that wait for their turn", "queued")
        self._gauge("queue_tokens", "Prompt tokens of the requests that wait", "queued_tokens")
        self._gauge("engine_sequences", "Choices in the engine", "running")
        self.computed_metric("admission_limit", "What admission allows", ("bound",), self._limits)
        self._queued = self.histogram("queue_seconds", "Arrival to admission", LONG_S)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        self._queued.observe(labels, [record.queued for record in records])

    def _gauge(self, name: str, help_: str, what: str) -> None:
        def read() -> Iterator[tuple[tuple[()], float]]:
            admission = self.scope.admission()
            if admission is not None:
                yield (), getattr(admission, what)

        self.computed_metric(name, help_, (), read)

    def _limits(self) -> Iterator[tuple[tuple[str], float]]:
        admission = self.scope.admission()
        if admission is not None:
            for name, bound in asdict(admission.bounds).items():
                yield (name,), bound


class InterruptedStreams(MetricGroup):
    """Streams that had begun and were cut, by what cut them: client_gone, slow_reader,
    timeout, engine, error.

    ``sum by (reason) (rate(eaglegate_streams_interrupted_total[5m]))``
    """

    def declare(self) -> None:
        self._cut = self.counter(
            "streams_interrupted", "Streams cut after their first token", (*LABELS, "reason")
        )

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        for ending, count in Counter(r.ending for r in records if r.interrupted).items():
            self._cut(*labels, ending.value).inc(count)


class ResponseStorage(MetricGroup):
    """Responses that were delivered and could not be stored: the disk is full, or the database
    away. Their ``store`` says false.

    ``increase(eaglegate_responses_not_stored_total[15m]) > 0``
    """

    def declare(self) -> None:
        self._lost = 0
        help_ = "Responses delivered that could not be stored"
        self.computed_metric("responses_not_stored_total", help_, (), lambda: [((), self._lost)])

    def record_storage_failure(self) -> None:
        self._lost += 1
