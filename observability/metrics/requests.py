"""Metrics of requests: outcomes, refusals, the queue, latency, tokens and tool calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from eaglegate.observability.facts import (
    FieldsIgnored,
    ParserChosen,
    RequestRefused,
    StorageFailed,
)
from eaglegate.observability.labels import LABELS, CappedNames, KnownNames, Labels, name_api
from eaglegate.observability.metrics.base import LONG_S, SHORT_S, MetricGroup
from eaglegate.observability.observation import DecodeProgress, RequestRecord


class Requests(MetricGroup):
    """Requests by API and outcome, running requests, and durations.

    Error ratio: ``sum(rate(eaglegate_requests_total{outcome=~"engine|timeout|error"}[5m])) /
    sum(rate(eaglegate_requests_total[5m]))``. A client that leaves does not count as an error.
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
            "requests_refused", "Requests refused, by API and error code", ("api", "code")
        )
        self.on(RequestRefused, self._count)

    def _count(self, fact: RequestRefused) -> None:
        self._refused(name_api(fact.where), self._codes(fact.code)).inc()


FIELDS = (
    "cache_prompt", "client_metadata", "enable_thinking", "extra_body", "format", "guardrails",
    "input_type", "keep_alive", "logprob_token_ids", "models", "num_ctx", "options", "plugins",
    "preset", "provider", "reasoning", "repeat_penalty", "route", "slot_id", "stream_interval",
    "suffix", "thinking", "transforms", "typical_p", "usage", "verbose", "watermarking",
    "web_search_options", "tools[].cache_control", "tools[].defer_loading", "tools[].strict",
)  # fmt: skip
"""Fields of other servers and of hosted APIs that may be label values."""
HOSTED_TOOL = "hosted_tool"


class IgnoredFields(MetricGroup):
    """Request fields that were ignored: unknown fields, and hosted tools.

    ``topk(5, sum by (field) (rate(eaglegate_ignored_fields_total[1h])))``
    """

    def declare(self) -> None:
        self._known = KnownNames(FIELDS)
        help_ = "Request fields ignored, by API and name; unlisted names are other"
        self._ignored = self.counter("ignored_fields", help_, ("api", "field"))
        self.on(FieldsIgnored, self._count)

    def _count(self, fact: FieldsIgnored) -> None:
        for name in fact.names:
            self._ignored(name_api(fact.where), self._field(name)).inc()

    def _field(self, name: str) -> str:
        is_hosted = name.startswith("tools[") and not name.startswith("tools[].")
        return HOSTED_TOOL if is_hosted else self._known(name)


class Queue(MetricGroup):
    """The queue before the engine, and its limits: ``running`` sequences in the engine, ``queued``
    requests, and ``queued_tokens`` of their prompts.

    Share of the queue in use: ``eaglegate_queue_requests / on ()
    eaglegate_admission_limit{bound="queued"}``
    """

    def declare(self) -> None:
        self._gauge("queue_requests", "Requests waiting in the queue", "queued")
        self._gauge("queue_tokens", "Prompt tokens of the requests in the queue", "queued_tokens")
        self._gauge("engine_sequences", "Sequences (choices) in the engine", "running")
        self.labelled_metric(
            "admission_limit", "Limit of the queue or the engine, by bound", "bound", self._limits
        )
        self._queued = self.histogram("queue_seconds", "Arrival to admission", LONG_S)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        self._queued.observe(labels, [record.queued for record in records])

    def _gauge(self, name: str, help_: str, what: str) -> None:
        self.number_metric(name, help_, lambda: getattr(self.scope.admission(), what, None))

    def _limits(self) -> dict[str, float]:
        admission = self.scope.admission()
        return {} if admission is None else asdict(admission.bounds)


class InterruptedStreams(MetricGroup):
    """Streams interrupted after they began, by reason: client_gone, slow_reader,
    timeout, engine, error.

    ``sum by (reason) (rate(eaglegate_streams_interrupted_total[5m]))``
    """

    def declare(self) -> None:
        self._cut = self.counter(
            "streams_interrupted",
            "Streams interrupted after their first token",
            (*LABELS, "reason"),
        )

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        for ending, count in Counter(r.ending for r in records if r.interrupted).items():
            self._cut(*labels, ending.value).inc(count)


class ResponseStorage(MetricGroup):
    """Responses that were delivered but could not be stored, because the disk is full or the
    database is not available. Their ``store`` is false.

    ``increase(eaglegate_responses_not_stored_total[15m]) > 0``
    """

    def declare(self) -> None:
        self._lost = 0
        help_ = "Responses delivered that could not be stored"
        self.computed_metric("responses_not_stored_total", help_, (), lambda: [((), self._lost)])
        self.on(StorageFailed, self._count)

    def _count(self, _: StorageFailed) -> None:
        self._lost += 1


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
    """Time between steps as the engine delivers them. Under speculation it is about TPOT x
    acceptance length, so it must not be called TPOT.

    ``histogram_quantile(0.95, sum by (le) (rate(eaglegate_inter_step_seconds_bucket[5m])))``
    """

    def declare(self) -> None:
        self._gaps = self.histogram(
            "inter_step_seconds", "Time between two steps of a choice", SHORT_S
        )

    def record_progress(self, progress: DecodeProgress) -> None:
        self._gaps.observe(progress.slices.labels, progress.gaps)


class UserSpeed(MetricGroup):
    """Speed of one client's stream: 1 / TPOT, in tokens per second.

    ``histogram_quantile(0.1,
    sum by (le) (rate(eaglegate_user_tokens_per_second_bucket[5m])))`` is the slow tail.
    """

    BOUNDS = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000)

    def declare(self) -> None:
        self._speed = self.histogram("user_tokens_per_second", "1 / TPOT, per choice", self.BOUNDS)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        self._speed.observe(labels, [1 / tpot for tpot in collect_tpots(records) if tpot])


def collect_tpots(records: list[RequestRecord]) -> list[float]:
    """Return the TPOT of each choice that has one."""
    choices = (choice for record in records for choice in record.choices)
    return [choice.tpot for choice in choices if choice.tpot is not None]


class Tokens(MetricGroup):
    """Tokens of prompts (cached ones included), of cached prompts, of answers, and of reasoning in
    them.

    Throughput: ``sum(rate(eaglegate_completion_tokens_total[1m]))``; share of prompts served from
    the prefix cache: ``rate(eaglegate_cached_tokens_total[5m]) /
    rate(eaglegate_prompt_tokens_total[5m])``. A draft that reads hidden states needs the last block
    of every hit computed again. The lost share of hits:
    ``rate(eaglegate_draft_recomputed_tokens_total[5m]) / (rate(
    eaglegate_draft_recomputed_tokens_total[5m]) + rate(eaglegate_cached_tokens_total[5m]))``.
    Completion tokens include those of requests that were cut off. The other counts come from
    ``usage`` and so only from choices that reached their end.
    """

    def declare(self) -> None:
        self._prompt = self.counter("prompt_tokens", "Prompt tokens of ended choices")
        self._cached = self.counter("cached_tokens", "Prompt tokens served from the prefix cache")
        self._recomputed = self.counter(
            "draft_recomputed_tokens",
            "Prompt tokens in the prefix cache that were computed again because of the draft",
        )
        self._completion = self.counter("completion_tokens", "Output tokens delivered")
        self._reasoning = self.counter("reasoning_tokens", "Output tokens inside reasoning")

    def record_progress(self, progress: DecodeProgress) -> None:
        self._completion(*progress.slices.labels).inc(progress.total.tokens)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        usages = [c.usage for record in records for c in record.choices if c.usage is not None]
        self._prompt(*labels).inc(sum(usage.prompt for usage in usages))
        self._cached(*labels).inc(sum(usage.cached for usage in usages))
        self._recomputed(*labels).inc(sum(usage.recomputed for usage in usages))
        self._reasoning(*labels).inc(sum(usage.reasoning for usage in usages))


class ToolCalls(MetricGroup):
    """Tool calls by outcome: valid, unchecked, schema_mismatch, malformed, truncated, unknown_tool.

    Failure ratio: ``sum(rate(eaglegate_tool_calls_total{outcome!~"valid|unchecked"}[5m]))
    / sum(rate(eaglegate_tool_calls_total[5m]))``. Repairs by kind: docs/parsers.md.
    """

    def declare(self) -> None:
        self._calls = self.counter("tool_calls", "Tool calls, by outcome", (*LABELS, "outcome"))
        self._repairs = self.counter(
            "tool_call_repairs",
            "Tool calls with repaired arguments, by repair",
            (*LABELS, "repair"),
        )
        self._parser = self.gauge(
            "parser_info",
            "Always 1; the parser of answers. source is eaglegate",
            ("purpose", "parser", "source"),
        )
        self.on(ParserChosen, self._set_parser)

    def _set_parser(self, fact: ParserChosen) -> None:
        self._parser(fact.purpose, fact.parser, "eaglegate").set(1)

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        calls = Counter(call for record in records for c in record.choices for call in c.tools)
        for outcome, count in calls.items():
            self._calls(*labels, outcome.value).inc(count)
        repairs = Counter(
            repair_kind for record in records for c in record.choices for repair_kind in c.repairs
        )
        for repair, count in repairs.items():
            self._repairs(*labels, repair.value).inc(count)


GROUPS: tuple[type[MetricGroup], ...] = (
    Requests,
    Refusals,
    IgnoredFields,
    Queue,
    InterruptedStreams,
    ResponseStorage,
    Latency,
    StepLatency,
    UserSpeed,
    Tokens,
    ToolCalls,
)
