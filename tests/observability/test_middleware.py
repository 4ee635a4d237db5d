from __future__ import annotations

import asyncio
import gzip
import io
from contextlib import aclosing

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from eaglegate.engine.events import Ending, Finish, Usage
from eaglegate.engine.scripted import ScriptedEngine, steps
from eaglegate.engine.steps import read_steps
from eaglegate.engine.types import EngineRequest, Sampling
from eaglegate.observability.engine import InstrumentedEngine
from eaglegate.observability.middleware import AccessLog, TelemetryMiddleware
from eaglegate.observability.tracing import OpenTelemetry
from eaglegate.text.events import ContentDelta
from tests.http_server import answering
from tests.observability.scene import begin, make_telemetry

SECRET = "the prompt nobody may read"


class Gateway:
    """The parts of a server that a request needs: begin, step, event, end, answer."""

    def __init__(self, *, stream: bool, ending: Ending = Ending.COMPLETED, status: int = 200):
        self.telemetry = make_telemetry()
        self.scripted = ScriptedEngine(steps(range(9), cuts=[1, 4, 4]))
        self.engine = InstrumentedEngine(self.scripted, self.telemetry)
        self.stream, self.ending, self.status = stream, ending, status
        self.seen_id = ""

    async def __call__(self, scope, receive, send):
        self.seen_id = scope["state"]["request_id"]
        if scope["path"] != "/v1/chat/completions":
            self.telemetry.record_refusal(scope["path"], "not_found")
            await self._send(send, 404)
            return
        await receive()
        if self.stream:
            await send({"type": "http.response.start", "status": self.status, "headers": []})
        await asyncio.create_task(self._generate())
        if self.ending is Ending.CLIENT_GONE:
            assert (await receive())["type"] == "http.disconnect"
            return
        if self.stream:
            await send({"type": "http.response.body", "body": b"end"})
        else:
            await self._send(send, self.status)

    async def _send(self, send, status):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def _generate(self):
        observation = begin(
            self.telemetry, "s", id="chatcmpl-1", stream=self.stream, prompt_tokens=12
        )
        async with aclosing(
            read_steps(self.engine.generate, EngineRequest("s", (1,), Sampling(max_tokens=99)))
        ) as stream:
            async for _ in stream:
                observation.choice("s")(ContentDelta(SECRET))
        observation.choice("s")(Finish("stop", Usage(prompt=12, completion=9)))
        observation.end(self.ending)


async def exchange(app, path="/v1/chat/completions", **headers: str):
    """Drive one request by hand; the response's headers and body."""
    sent: list[dict] = []
    incoming = iter([{"type": "http.request", "body": SECRET.encode()}])

    async def receive():
        return next(incoming, {"type": "http.disconnect"})

    async def send(message):
        sent.append(message)

    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "client": ("::1", 9)}
    await app(scope, receive, send)
    start = {k.decode(): v.decode() for k, v in sent[0]["headers"]} if sent else {}
    return start, b"".join(m.get("body", b"") for m in sent)


def logged(gateway) -> tuple[TelemetryMiddleware, io.StringIO]:
    out = io.StringIO()
    return TelemetryMiddleware(gateway, AccessLog(stream=out)), out


@pytest.mark.parametrize("given", ["abc-1.2:3", "x" * 128])
async def test_a_client_s_id_is_kept_and_returned(given):
    gateway = Gateway(stream=False)
    app, out = logged(gateway)
    headers, _ = await exchange(app, x_request_id=given)
    assert headers["x-request-id"] == headers["request-id"] == gateway.seen_id == given
    assert orjson.loads(out.getvalue())["request_id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, 'a"}\n{"b', "über"])
async def test_invalid_request_ids_are_replaced(given):
    headers, _ = await exchange(logged(Gateway(stream=False))[0], x_request_id=given)
    assert len(headers["x-request-id"]) == 32


async def test_one_line_says_what_happened_and_not_what_was_said():
    app, out = logged(Gateway(stream=True))
    await exchange(app)
    (text,) = out.getvalue().splitlines()
    line = orjson.loads(text)
    want = {
        "status": 200,
        "id": "chatcmpl-1",
        "outcome": "completed",
        "workload": "chat",
        "context": "0-512",
        "completion_tokens": 9,
        "acceptance_length": 4.0,
        "drafted_tokens": 6,
        "accepted_tokens": 6,
        "finish": ["stop"],
        "client_gone": False,
    }
    assert {key: line[key] for key in want} == want
    assert line["ttft_ms"] >= 0
    assert line["tpot_ms"] >= 0
    assert SECRET not in text


async def test_a_line_for_people_has_the_same_and_stays_one_line():
    out = io.StringIO()
    app = TelemetryMiddleware(Gateway(stream=True), AccessLog(stream=out, kind="text"))
    await exchange(app, x_request_id="mine")
    await exchange(app, path="/x\n2026 ERROR forged")
    first, second = out.getvalue().splitlines()
    assert "INFO eaglegate.access: POST /v1/chat/completions 200" in first
    for part in ("completed", "9 tokens", "acceptance 4.00", "chatcmpl-1", "request mine"):
        assert part in first
    assert SECRET not in first
    assert "/x\\n2026 ERROR forged 404" in second


async def test_a_client_that_leaves_is_seen():
    app, out = logged(Gateway(stream=True, ending=Ending.CLIENT_GONE))
    await exchange(app)
    line = orjson.loads(out.getvalue())
    assert line["client_gone"] is True
    assert line["outcome"] == "client_gone"


async def test_polled_pages_are_not_logged_and_others_are():
    app, out = logged(Gateway(stream=False))
    await exchange(app, path="/metrics")
    assert out.getvalue() == ""
    await exchange(app, path="/" + "x" * 1000)
    line = orjson.loads(out.getvalue())
    assert (line["status"], line["refused"], len(line["path"])) == (404, "not_found", 200)
    assert "outcome" not in line


async def test_server_timing_only_when_the_answer_is_whole():
    whole, _ = await exchange(logged(Gateway(stream=False))[0])
    parts = [part.split(";")[0] for part in whole["server-timing"].split(", ")]
    assert parts == ["queue", "ttft", "tpot", "total", "speculation"]
    assert 'speculation;desc="acceptance 4.00"' in whole["server-timing"]
    streamed, _ = await exchange(logged(Gateway(stream=True))[0])
    assert "server-timing" not in streamed


def traced(gateway) -> tuple[TelemetryMiddleware, InMemorySpanExporter]:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    app = TelemetryMiddleware(gateway, AccessLog(stream=io.StringIO()), OpenTelemetry(provider))
    return app, memory


async def test_traces_continue_the_client_s_and_reach_the_engine():
    gateway = Gateway(stream=True)
    app, memory = traced(gateway)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    await exchange(app, traceparent=f"00-{trace}-{parent}-01")
    generation, http = memory.get_finished_spans()
    assert f"{http.context.trace_id:032x}" == trace
    assert f"{http.parent.span_id:016x}" == parent
    assert generation.parent.span_id == http.context.span_id
    (request,) = gateway.scripted.requests
    assert request.trace_headers == {"traceparent": f"00-{trace}-{http.context.span_id:016x}-01"}
    assert http.name == "POST /v1/chat/completions"
    assert generation.name == "chat m"
    assert generation.attributes["gen_ai.usage.output_tokens"] == 9
    assert generation.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert generation.attributes["eaglegate.acceptance_length"] == 4.0
    assert http.start_time <= generation.start_time + 1_000_000
    assert not any(SECRET in str(value) for value in generation.attributes.values())


async def test_without_tracing_the_client_s_context_reaches_the_engine():
    gateway = Gateway(stream=True)
    app, _ = logged(gateway)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await exchange(app, traceparent=parent, cookie="secret")
    (request,) = gateway.scripted.requests
    assert request.trace_headers == {"traceparent": parent}


async def test_failed_requests_have_error_spans():
    app, memory = traced(Gateway(stream=True, ending=Ending.ENGINE, status=500))
    await exchange(app)
    generation, http = memory.get_finished_spans()
    assert generation.attributes["error.type"] == "engine"
    assert generation.status.status_code is http.status.status_code is StatusCode.ERROR


async def test_unknown_paths_do_not_name_spans():
    app, memory = traced(Gateway(stream=False))
    await exchange(app, path="/secret/1234")
    (http,) = memory.get_finished_spans()
    assert http.name == "POST"


async def test_traces_arrive_at_a_collector():
    with answering() as (url, asked):
        tracing = OpenTelemetry.for_endpoint(url)
        app = TelemetryMiddleware(Gateway(stream=False), AccessLog(stream=io.StringIO()), tracing)
        await exchange(app)
        await tracing.aclose()
    ((path, body),) = asked
    assert path == "/v1/traces"
    if body.startswith(b"\x1f\x8b"):
        body = gzip.decompress(body)
    sent = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert sorted(span.name for span in sent) == ["POST /v1/chat/completions", "chat m"]
