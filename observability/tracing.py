"""OpenTelemetry traces: a span per HTTP exchange, with a child span for the generation.

Names and attributes follow the semantic conventions for HTTP servers and for generative AI. Other
attributes are called ``eaglegate.*``. Needs the ``otel`` extra.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eaglegate.engine.events import Ending
from eaglegate.observability.labels import OTHER, name_api
from eaglegate.observability.middleware import QUIET, HttpExchange, RawHeaders, Tracing
from eaglegate.observability.observation import RequestRecord

SERVICE = "eaglegate"
OPERATIONS = {"completions": "text_completion"}
"""``gen_ai.operation.name`` by API; ``chat`` for all others."""


class OpenTelemetry(Tracing):
    """Spans of an OpenTelemetry provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._context = TraceContextTextMapPropagator()
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    @classmethod
    def for_endpoint(cls, endpoint: str, service: str = SERVICE) -> OpenTelemetry:
        """Return tracing to an OTLP/HTTP collector such as ``http://localhost:4318``."""
        url = (
            endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + "/v1/traces"
        )
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        return cls(provider)

    def begin(self, exchange: HttpExchange, headers: RawHeaders) -> None:
        if exchange.path in QUIET:
            return
        route = exchange.path if name_api(exchange.path) != OTHER else ""
        exchange.span = self._tracer.start_span(
            f"{exchange.method} {route}".strip(),
            context=self._context.extract(
                {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
            ),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": exchange.method,
                "url.path": exchange.path,
                "eaglegate.request_id": exchange.request_id,
                **({"http.route": route} if route else {}),
            },
        )
        passed_on: dict[str, str] = {}
        self._context.inject(passed_on, set_span_in_context(exchange.span))
        exchange.trace_headers = passed_on

    def end(self, exchange: HttpExchange) -> None:
        span = exchange.span
        if span is None:
            return
        record = exchange.observation.record if exchange.observation else None
        if record is not None:
            self._add_generation_span(exchange, record)
        span.set_attribute("http.response.status_code", exchange.status)
        if exchange.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    async def aclose(self) -> None:
        await asyncio.to_thread(self._provider.shutdown)

    def _add_generation_span(self, exchange: HttpExchange, record: RequestRecord) -> None:
        facts = record.facts
        operation = OPERATIONS.get(facts.api, "chat")
        span = self._tracer.start_span(
            f"{operation} {facts.model}",
            context=set_span_in_context(exchange.span),
            kind=SpanKind.INTERNAL,
            attributes={"gen_ai.operation.name": operation, **make_attributes(record)},
            start_time=self._to_ns(facts.arrived),
        )
        if record.ending not in (Ending.COMPLETED, Ending.CLIENT_GONE, Ending.SLOW_READER):
            span.set_status(Status(StatusCode.ERROR, record.ending.value))
            span.set_attribute("error.type", record.ending.value)
        span.end(self._to_ns(facts.arrived + record.duration))

    def _to_ns(self, seconds: float) -> int:
        return self._epoch_ns + int(seconds * 1e9)


def make_attributes(record: RequestRecord) -> dict[str, Any]:
    """Make the attributes of a generation's span. A number that does not exist is left out."""
    facts, totals = record.facts, record.totals
    usages = [choice.usage for choice in record.choices if choice.usage is not None]
    attributes = {
        "gen_ai.provider.name": SERVICE,
        "gen_ai.request.model": facts.model,
        "gen_ai.request.stream": facts.stream,
        "gen_ai.request.choice.count": len(record.choices),
        "gen_ai.response.id": facts.id,
        "gen_ai.response.model": facts.model,
        "gen_ai.response.finish_reasons": [c.finish for c in record.choices if c.finish],
        "gen_ai.response.time_to_first_chunk": record.ttft,
        "gen_ai.usage.input_tokens": facts.prompt_tokens,
        "gen_ai.usage.output_tokens": record.tokens,
        "gen_ai.usage.cache_read.input_tokens": sum(usage.cached for usage in usages),
        "gen_ai.usage.reasoning.output_tokens": sum(usage.reasoning for usage in usages),
        "eaglegate.outcome": record.ending.value,
        "eaglegate.lane": record.slices.labels.lane,
        "eaglegate.workload": record.slices.labels.workload,
        "eaglegate.queue_s": record.queued,
        "eaglegate.acceptance_length": totals.acceptance_length,
        "eaglegate.verify_steps": totals.verify_steps,
        "eaglegate.fallback_ratio": totals.fallback_ratio,
    }
    return {name: value for name, value in attributes.items() if value is not None}
