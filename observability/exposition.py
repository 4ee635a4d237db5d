"""What ``GET /metrics`` answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class MergedRegistries(Collector):
    """Several registries as one page; a family is taken from the first that has it.

    The client's ``_created`` times are left out: they double the page and nobody asks for them.
    """

    def __init__(self, registries: Iterable[CollectorRegistry]) -> None:
        self._registries = tuple(registries)

    def collect(self) -> Iterator[Metric]:
        seen: set[str] = set()
        for registry in self._registries:
            for family in registry.collect():
                if family.name not in seen:
                    seen.add(family.name)
                    yield _drop_created_samples(family)


def _drop_created_samples(family: Metric) -> Metric:
    made = Metric(family.name, family.documentation, family.type, family.unit)
    made.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return made


def render_metrics(registry: CollectorRegistry) -> bytes:
    """Our metrics, then those of the process-wide registry: vLLM's ``vllm:*``, Python, process."""
    page = CollectorRegistry(auto_describe=False)
    page.register(MergedRegistries((registry, REGISTRY)))
    return generate_latest(page)
