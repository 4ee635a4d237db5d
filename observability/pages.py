"""The pages of telemetry: ``/metrics``, ``/debug/speculation`` and the live page at ``/``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from eaglegate import __version__
from eaglegate.engine.fleet.types import WorkerStatus
from eaglegate.engine.types import EngineInfo
from eaglegate.observability.metrics.base import AdmissionQueue
from eaglegate.observability.metrics.engine import summarize_planner
from eaglegate.observability.problems import find_problem, list_problems
from eaglegate.observability.telemetry import Telemetry
from eaglegate.observability.windows import ALL, KINDS, SlidingWindow

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class MergedRegistries(Collector):
    """Several registries as one page. A metric family comes from the first registry that has it.

    Samples named ``_created`` are left out, because they double the page and no dashboard uses
    them.
    """

    def __init__(self, registries: Iterable[CollectorRegistry]) -> None:
        self._registries = tuple(registries)

    def collect(self) -> Iterator[Metric]:
        names: set[str] = set()
        for registry in self._registries:
            for family in registry.collect():
                if family.name not in names:
                    names.add(family.name)
                    yield _drop_created_samples(family)


def _drop_created_samples(family: Metric) -> Metric:
    metric = Metric(family.name, family.documentation, family.type, family.unit)
    metric.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return metric


WAITING, RUNNING = "vllm:num_requests_waiting", "vllm:num_requests_running"


class PodLoad(Collector):
    """The series by which endpoint pickers and autoscalers tell how busy a pod of vLLM is.

    vLLM does not know the requests in the gateway's queue, so a full queue would look idle. They
    are added to its waiting requests, in equal parts where there are several engines, since a
    picker reads one of the series. A gateway without an engine of its own has the queue and the
    sequences of its workers.
    """

    def __init__(self, read: Callable[[], AdmissionQueue | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        queue = self._read()
        if queue is None:
            return
        families = list(REGISTRY.restricted_registry([WAITING]).collect())
        for family in families:
            share = queue.queued / max(1, len(family.samples))
            metric = Metric(family.name, family.documentation, family.type)
            metric.samples = [s._replace(value=s.value + share) for s in family.samples]
            yield metric
        if not families:
            yield GaugeMetricFamily(WAITING, "Requests in the gateway's queue", queue.queued)
            yield GaugeMetricFamily(RUNNING, "Sequences at the workers", queue.running)


def render_metrics(
    registry: CollectorRegistry, admission: Callable[[], AdmissionQueue | None] = lambda: None
) -> bytes:
    """Return the gateway's metrics, then those of the process-wide registry: vLLM, Python,
    process. ``admission`` returns the queue whose requests wait for vLLM."""
    page, load = CollectorRegistry(auto_describe=False), CollectorRegistry(auto_describe=False)
    load.register(PodLoad(admission))
    page.register(MergedRegistries((load, registry, REGISTRY)))
    return generate_latest(page)


RECENT_STEPS = 50
"""Number of planned steps that ``/debug/speculation`` lists."""
Row = dict[str, Any]


def summarize_speculation(telemetry: Telemetry) -> Row:
    """Return everything that the page at ``/`` shows. Null means no data, never zero."""
    telemetry.settle()
    now = telemetry.clock()
    slices = {
        kind: {name: summarize_window(window, now) for name, window in telemetry.book.of_kind(kind)}
        for kind in KINDS
    }
    settings = telemetry.settings
    empty_window = SlidingWindow(settings.window_s, settings.baseline_half_life_s)
    window = next((w for _, w in telemetry.book.of_kind(ALL)), empty_window)
    del slices[ALL]
    return {
        "version": __version__,
        "window_s": settings.window_s,
        "running": telemetry.num_running,
        "tokens_per_s": compute_throughput(telemetry, now),
        "draft": telemetry.draft,
        "headlines": [line for part in telemetry.parts for line in part.list_headlines()],
        "admission": _describe_admission(telemetry.scope.admission()),
        "gpus": [{"index": gpu.index, **asdict(gpu.read())} for gpu in telemetry.gpus],
        "draft_holds": [asdict(hold) for hold in telemetry.draft_holds],
        "engines": {lane: _describe_engine(info) for lane, info in telemetry.engines.items()},
        "workers": [_describe_worker(worker) for worker in telemetry.scope.workers()],
        "planner": summarize_planner(telemetry.planner),
        "problems": list(list_problems(telemetry, window.sums(now).totals)),
        "all": summarize_window(window, now),
        "slices": slices,
        "history": list_history(telemetry, now),
    } | {name: value for part in telemetry.parts for name, value in part.describe().items()}


def summarize_window(window: SlidingWindow, now: float) -> Row:
    """Summarize one slice over the window. ``against_baseline`` is acceptance length / baseline."""
    sums = window.sums(now)
    totals = sums.totals
    length, baseline = totals.acceptance_length, window.baseline(now)
    return {
        "requests": sums.requests,
        "tokens": totals.tokens,
        "verify_steps": totals.verify_steps,
        "mean_depth": totals.mean_depth,
        "drafted_tokens": totals.proposed,
        "wasted_tokens": totals.wasted,
        "baseline": baseline,
        "against_baseline": length / baseline if length and baseline else None,
        "acceptance_per_position": totals.acceptance_per_position,
        "conditional_acceptance": totals.conditional_acceptance,
        "fallback_by_reason": totals.fallback_by_reason,
        "problem": find_problem(totals),
    } | sums.describe()


def list_history(telemetry: Telemetry, now: float) -> list[Row]:
    """Return the window's buckets, oldest first. The last one is still filling."""
    return [
        {"age_s": age, "tokens_per_s": sums.totals.tokens / window.bucket_s} | sums.describe()
        for _, window in telemetry.book.of_kind(ALL)
        for age, sums in window.history(now)
    ]


def compute_throughput(telemetry: Telemetry, now: float) -> float:
    """Return output tokens per second over the last two full buckets and the unfinished one."""
    buckets = [
        (window.bucket_s, sums.totals.tokens)
        for _, window in telemetry.book.of_kind(ALL)
        for age, sums in window.history(now)
        if age <= 2 * window.bucket_s
    ]
    if not buckets:
        return 0.0
    bucket_s = buckets[0][0]
    return sum(tokens for _, tokens in buckets) / (2 * bucket_s + now % bucket_s)


def _describe_engine(info: EngineInfo) -> Row:
    speculation = info.speculation
    return {
        "model": info.model,
        "method": speculation.method,
        "depth": speculation.depth,
        "lookup": speculation.lookup,
        "draft": speculation.draft,
        "summary": speculation.summary,
        "lossy": speculation.lossy,
        "worker": info.details.get("worker"),
    }


def _describe_admission(queue: AdmissionQueue | None) -> Row | None:
    if queue is None:
        return None
    counts = {"running": queue.running, "queued": queue.queued}
    return counts | {"queued_tokens": queue.queued_tokens, "limits": asdict(queue.bounds)}


def _describe_worker(worker: WorkerStatus) -> Row:
    """Describe a worker. ``acceptance_length`` covers all its work, including other clients'
    requests."""
    totals, row = worker.counted, asdict(worker)
    del row["counted"]
    return row | {
        "outstanding_tokens": round(row.pop("outstanding")),
        "acceptance_length": None if totals is None else totals.acceptance_length,
        "problem": None if totals is None else find_problem(totals),
    }


def show_json(body: Any, status: int = 200) -> Response:
    text = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    headers = {"cache-control": "no-store"}
    return Response(text, status, media_type="application/json", headers=headers)


def refuse(message: str, status: int, code: str | None, param: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": param}
    return show_json({"error": error}, status)


def refuse_kind(kind: str) -> Response:
    message = f"'kind' must be one of {', '.join(KINDS)}; given '{kind[:100]}'."
    return refuse(message, 400, None, "kind")


PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers that forbid foreign resources, inline scripts and embedding in a frame."""
MEDIA_TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript"}


def make_page_routes() -> list[Route]:
    """Return the routes of the page: ``/`` with both views, ``/playground`` with one, and their
    files."""

    def serve(path: str, file: Traversable) -> Route:
        content, kind = file.read_bytes(), MEDIA_TYPES[file.name.rpartition(".")[2]]

        async def send(_: Request) -> Response:
            return Response(content, headers=PAGE_HEADERS, media_type=kind)

        return Route(path, send, methods=["GET"])

    folder = files("eaglegate.observability").joinpath("page")
    index = folder.joinpath("index.html")
    assets = [file for file in folder.iterdir() if not file.name.endswith(".html")]
    return [
        serve("/", index),
        serve("/playground", index),
        *(serve(f"/page/{file.name}", file) for file in assets),
    ]


def make_routes(telemetry: Telemetry) -> list[Route]:
    """Return the routes ``/metrics`` for Prometheus, ``/debug`` for programs and ``/`` for
    people."""

    async def metrics(_: Request) -> Response:
        await telemetry.refresh_planner()
        telemetry.settle()
        page = render_metrics(telemetry.registry, telemetry.scope.admission)
        return Response(page, media_type=CONTENT_TYPE)

    async def debug(_: Request) -> Response:
        await telemetry.refresh_planner(RECENT_STEPS)
        return show_json(summarize_speculation(telemetry))

    async def history(request: Request) -> Response:
        query = request.query_params
        kind = query.get("kind", ALL)
        if kind not in KINDS:
            return refuse_kind(kind)
        telemetry.settle()
        return show_json(telemetry.history.describe(kind, query.get("name", "")))

    return [
        Route("/metrics", metrics, methods=["GET"]),
        Route("/debug/speculation", debug, methods=["GET"]),
        Route("/debug/history", history, methods=["GET"]),
        *make_page_routes(),
    ]
