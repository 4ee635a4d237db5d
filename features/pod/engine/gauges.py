"""Gauges and counters of a pod, on vLLM's own ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from eaglegate.engine.wrapping import wrap
from eaglegate.features.pod.engine.record import PodRecord

PREFIX = "eaglegate_pod_"
REASONS = ("off", "planned", "undrafted")
COUNTERS = {
    "decode_steps": "Decode steps of requests",
    "verify_steps": "Decode steps that verified draft tokens, as vllm:spec_decode_num_drafts",
    "draft_tokens": "Draft tokens verified, as vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "Draft tokens accepted, as vllm:spec_decode_num_accepted_tokens",
}
GAUGES = {
    "acceptance_length": "Tokens of a verify step, last half minute",
    "drafted_per_step": "Draft tokens of a verify step, last half minute",
    "fallback_ratio": "Share of decode steps without draft tokens, last half minute",
    "depth": "Draft tokens that a step makes for each request, last half minute",
    "step_seconds": "Seconds of a decode step, last half minute",
    "token_rate": "Tokens per second of a decoding request, last half minute",
}
INFO = "Settings of the pod; always 1"


class PodCollector(Collector):
    """Reads a pod's record at every scrape. Each series has the label ``engine``, the rank."""

    def __init__(self, record: PodRecord, info: Mapping[str, str]) -> None:
        self._record = record
        self._info = dict(info)

    def collect(self) -> Iterator[Metric]:
        ranks = self._record.read()
        info = GaugeMetricFamily(f"{PREFIX}info", INFO, labels=[*self._info])
        info.add_metric([*self._info.values()], 1.0)
        yield info
        for family, texts in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for name, text in texts.items():
                metric = family(PREFIX + name, text, labels=["engine"])
                for rank, numbers in ranks.items():
                    metric.add_metric([str(rank)], getattr(numbers, name))
                yield metric
        text = "Decode steps without draft tokens, by reason"
        undrafted = CounterMetricFamily(
            f"{PREFIX}undrafted_steps", text, labels=["engine", "reason"]
        )
        for rank, numbers in ranks.items():
            for reason in REASONS:
                undrafted.add_metric([str(rank), reason], getattr(numbers, reason))
        yield undrafted


def publish(collector: PodCollector) -> None:
    """Add the collector to the registries that vLLM's ``/metrics`` shows, once per process.

    With several API servers each scrape gets a new registry, into which prometheus_client's
    collector of all processes goes: this one then follows it.
    """
    if published:
        return
    published.append(collector)
    REGISTRY.register(collector)

    def initialize(original: Any, own: Any, registry: Any, *args: Any, **kwargs: Any) -> None:
        original(own, registry, *args, **kwargs)
        registry.register(collector)

    wrap(MultiProcessCollector, "__init__", initialize)


published: list[PodCollector] = []
"""The collector of this process. vLLM may make its configuration more than once."""
