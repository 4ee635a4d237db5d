"""Telemetry: collects engine steps and server events, and counts them into metrics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from eaglegate.engine.base import Engine, SupportsPlanning, SupportsUnclaimed
from eaglegate.engine.events import Observation, Observer, RequestFacts
from eaglegate.engine.machine import NvmlGpu
from eaglegate.engine.speculation.drafts.versions import DraftSwap, DraftVersion
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo, EngineRequest
from eaglegate.observability.facts import (
    DepthHeld,
    DraftForgotten,
    DraftSwapped,
    EngineChecked,
    EngineStarted,
    FactBus,
    FieldsIgnored,
    KeyForgotten,
    RequestBegan,
    RequestEnded,
    RequestInterrupted,
    RequestRefused,
    StorageFailed,
    TemplateForgotten,
)
from eaglegate.observability.history import DayHistory
from eaglegate.observability.labels import (
    IMAGES,
    NO_DRAFT,
    NO_KEY,
    NO_TEMPLATE,
    TEXT,
    KnownNames,
    Labels,
    RecentNames,
    TelemetrySettings,
    TopTemplates,
    name_context,
)
from eaglegate.observability.metrics.base import (
    MetricDeclaration,
    MetricGroup,
    MetricScope,
)
from eaglegate.observability.middleware import attach, note_refusal
from eaglegate.observability.observation import (
    ChoiceObservation,
    PendingMetrics,
    PhaseShares,
    ProgressSink,
    RequestObservation,
    RequestRecord,
    SliceNames,
)
from eaglegate.observability.sequence import MonotonicClock, SequenceTimeline
from eaglegate.observability.windows import KEY, TEMPLATE, SliceWindows

if TYPE_CHECKING:
    from eaglegate.engine.speculation.drafts.swap import DraftManager


Group = TypeVar("Group", bound=MetricGroup)
PlannerReader = Callable[[int], Awaitable[Mapping[str, Any]]]
COUNT_EVERY_S = 5.0
"""Interval well below a bucket of the windows, so that they stay current between scrapes."""


class PagePart(Protocol):
    """A part of the live page that comes from elsewhere."""

    def describe(self) -> Mapping[str, object]: ...

    def list_headlines(self) -> Iterable[str]: ...

    def list_problems(self) -> Iterable[str]: ...


class Telemetry(Observer):
    """The observer of a gateway, made once by the composition root.

    Steps and events are only recorded when they arrive. They are evaluated when a request ends, and
    counted in bulk on every scrape (``settle``), or else every few seconds.
    """

    def __init__(
        self,
        groups: Iterable[type[MetricGroup]],
        settings: TelemetrySettings,
        registry: CollectorRegistry | None = None,
        clock: MonotonicClock = time.perf_counter,
        gpus: tuple[NvmlGpu, ...] = (),
    ) -> None:
        self.settings = settings
        self.registry = registry or CollectorRegistry()
        self.clock = clock
        self.book = SliceWindows(settings)
        self.engines: dict[str, EngineInfo] = {}
        self._late = False
        """True if steps wait for their account until the answer ends."""
        self._templates = TopTemplates(settings.templates)
        self._models = KnownNames(settings.models)
        self._lanes = KnownNames(settings.lanes)
        self._workloads = KnownNames(settings.workloads)
        self._drafts = RecentNames(settings.drafts)
        self._keys = KnownNames(())
        self._by_draft: dict[str, Totals] = {}
        self.draft_holds: list[DraftHold] = []
        """Depths that are not used because they killed engines."""
        self.down: set[str] = set()
        """Names of engines that do not serve."""
        self.draft = NO_DRAFT
        """Fingerprint of the serving draft."""
        self._live: set[RequestObservation | DirectRequest] = set()
        self._sequences: dict[str, SequenceTimeline] = {}
        self._losing: dict[str, SupportsUnclaimed] = {}
        self._planner: PlannerReader | None = None
        self.planner: Mapping[str, Any] = {}
        """Last description by the depth planner."""
        self._batch = PendingMetrics()
        self._count_at = 0.0
        self.gpus = gpus
        self.facts = FactBus()
        self.facts.subscribe(EngineStarted, self._add_engine)
        self.facts.subscribe(EngineChecked, self._mark_engine)
        self.facts.subscribe(RequestInterrupted, self._add_interruption)
        self.facts.subscribe(DepthHeld, self._keep_hold)
        self.scope = MetricScope(
            self.registry,
            self.facts,
            settings,
            self.book,
            clock,
            gpus,
            self._read_unclaimed,
            self._read_running,
            lambda: self.planner,
        )
        """Sources in the rest of the gateway for metrics and pages."""
        self.history = DayHistory(self.scope)
        """The last day, for the page."""
        self.groups = [*(make(self.scope) for make in groups), self.history]
        self.catalogue: list[MetricDeclaration] = self.scope.catalogue
        self.parts: list[PagePart] = []
        """Further parts of the page and its problems."""

    def add_group(self, make: Callable[[MetricScope], Group]) -> Group:
        """Make a further group of metrics, and return it."""
        group = make(self.scope)
        self.groups.append(group)
        return group

    def begin(self, facts: RequestFacts) -> Observation:
        observation = RequestObservation(
            facts,
            self._name_slices(facts),
            self.clock,
            self._add_progress,
            self._end_request,
            self._late,
        )
        self._live.add(observation)
        self._sequences.update(observation.sequences)
        attach(observation)
        self.facts.publish(RequestBegan(observation, facts))
        return observation

    def record_refusal(self, api: str, code: str, key: str | None = None) -> None:
        note_refusal(code)
        self.facts.publish(RequestRefused(api, code, key))

    def record_ignored_fields(self, api: str, names: Sequence[str]) -> None:
        self.facts.publish(FieldsIgnored(api, names))

    def record_storage_failure(self) -> None:
        self.facts.publish(StorageFailed())

    def open_sequence(
        self, request: EngineRequest, model: str
    ) -> tuple[SequenceTimeline, Callable[[], None]]:
        """Return the timeline for the steps of ``request``, and a function to call at its end.

        Requests that bypass the server (warm-ups, probes) are counted by their own fields.
        """
        timeline = self._sequences.get(request.id)
        if timeline is not None:
            timeline.request = request
            return timeline, _do_nothing
        direct_request = DirectRequest(
            self._name_direct_slices(request, model),
            ChoiceObservation(SequenceTimeline(self.clock, self._late)),
            self._add_progress,
        )
        self._live.add(direct_request)

        def close() -> None:
            direct_request.settle(ended=True)
            self._live.discard(direct_request)

        return direct_request.choice.sequence, close

    def settle(self) -> None:
        """Update the metrics with the progress of running requests."""
        for observation in tuple(self._live):
            observation.settle()
        self._count()

    @property
    def num_running(self) -> int:
        """Number of requests in the engine."""
        return len(self._live)

    def _add_engine(self, fact: EngineStarted) -> None:
        self.engines[fact.engine] = fact.info
        self.down.discard(fact.engine)
        self._late = any(info.accounts_at_end for info in self.engines.values())

    def _mark_engine(self, fact: EngineChecked) -> None:
        (self.down.discard if fact.live else self.down.add)(fact.engine)

    def _add_interruption(self, fact: RequestInterrupted) -> None:
        if (sequence := self._sequences.get(fact.request)) is not None:
            sequence.interruptions.append((self.clock(), fact.outcome))

    def _keep_hold(self, fact: DepthHeld) -> None:
        (self.draft_holds.append if fact.is_held else self.draft_holds.remove)(fact.hold)

    def watch_engine(self, name: str, engine: Engine) -> None:
        """Read the unclaimed steps and the planner of ``engine``, if it has them."""
        if (planning := engine.capability(SupportsPlanning)) is not None:
            self.watch_planner(planning.describe_planning)
        if (unclaimed_source := engine.capability(SupportsUnclaimed)) is not None:
            self._losing[name] = unclaimed_source

    def watch_planner(self, reader: PlannerReader) -> None:
        """Read the depth planner with ``reader``, which takes the number of recent steps."""
        self._planner = reader

    async def refresh_planner(self, recent: int = 0) -> None:
        """Read the planner before a scrape. Without an answer its series are absent."""
        if self._planner is not None:
            self.planner = await self._planner(recent)

    def watch_drafts(self, drafts: DraftManager | None) -> None:
        """Count by the serving draft, from now on and after every swap."""
        if drafts is None:
            return
        if drafts.serving is not None:
            self._change_draft(drafts.serving.fingerprint)
        drafts.watch(self._record_swap)

    def name_keys(self, names: Iterable[str]) -> None:
        """Count by these API keys from now on, and drop the series of all others."""
        keys = KnownNames(list(names)[: self.settings.keys])
        removed_keys, self._keys = self._keys - keys, keys
        if not removed_keys:
            return
        self.settle()
        for key in removed_keys:
            for live in self._live:
                live.forget_key(key)
            self.book.forget(KEY, key)
            self.facts.publish(KeyForgotten(key))

    def total_of(self, draft: str) -> Totals:
        """Return the totals of all steps so far that the draft with this fingerprint served."""
        self.settle()
        return self._by_draft.get(draft, Totals())

    def _record_swap(self, draft: DraftVersion, swap: DraftSwap) -> None:
        self._change_draft(draft.fingerprint)
        self.facts.publish(DraftSwapped(swap))

    def _change_draft(self, draft: str) -> None:
        """Count by another draft. Settled steps count for the old draft, the newest of each stream
        for the new."""
        self.settle()
        self.draft = draft
        for live in self._live:
            live.change_draft(draft)
        forgotten_draft = self._drafts.add(draft)
        if forgotten_draft is not None:
            self._by_draft.pop(forgotten_draft, None)
            self.facts.publish(DraftForgotten(forgotten_draft))

    def _read_unclaimed(self) -> Iterator[tuple[str, Totals]]:
        return ((name, source.unclaimed) for name, source in self._losing.items())

    def _read_running(self) -> Iterator[Labels]:
        return (live.slices.labels for live in self._live)

    def _add_progress(self, slices: SliceNames, shares: PhaseShares, gaps: list[float]) -> None:
        self._batch.add_progress(slices, shares, gaps)
        if self._batch.full:
            self._count()

    def _end_request(self, observation: RequestObservation, record: RequestRecord) -> None:
        self._live.discard(observation)
        for id_ in record.facts.sequences:
            self._sequences.pop(id_, None)
        self._batch.add_record(record)
        self.facts.publish(RequestEnded(observation, record))
        if self.clock() >= self._count_at:
            self._count()

    def _count(self) -> None:
        now = self.clock()
        batch, self._batch = self._batch, PendingMetrics()
        self._count_at = now + COUNT_EVERY_S
        for progress in batch.progress():
            self.book.add_progress(progress, now)
            draft, totals = progress.slices.draft, progress.total.totals
            self._by_draft[draft] = self._by_draft.get(draft, Totals()) + totals
            for group in self.groups:
                group.record_progress(progress)
        for slices, records in batch.records():
            self.book.add_records(slices, records, now)
        for labels, records in batch.records_by_labels().items():
            for group in self.groups:
                group.record_requests(labels, records)

    def _name_slices(self, facts: RequestFacts) -> SliceNames:
        template, forgotten_template = self._templates.name(facts.template)
        if forgotten_template is not None:
            self._forget_template(forgotten_template)
        labels = self._make_labels(facts.model, facts.lane, facts.workload)
        context, key = name_context(facts.prompt_tokens), self.name_key(facts.key)
        kind = IMAGES if facts.images else TEXT
        return SliceNames(labels, context, template, self.draft, key, kind)

    def name_key(self, key: str | None) -> str:
        """Return the label of a key: its name, ``other``, or empty without named keys."""
        return NO_KEY if key is None or not self._keys else self._keys(key)

    def _name_direct_slices(self, request: EngineRequest, model: str) -> SliceNames:
        labels = self._make_labels(model, request.lane, request.workload)
        context, kind = name_context(request.num_prompt), IMAGES if request.images else TEXT
        return SliceNames(labels, context, NO_TEMPLATE, self.draft, input=kind)

    def name_workload(self, workload: str) -> str:
        """Return the label of a workload."""
        return self._workloads(workload)

    def _make_labels(self, model: str, lane: str, workload: str) -> Labels:
        return Labels(self._models(model), self._lanes(lane), self._workloads(workload))

    def _forget_template(self, template: str) -> None:
        """Count the progress of a template that lost its name, then drop it everywhere."""
        self._count()
        for live in self._live:
            live.forget(template)
        self.book.forget(TEMPLATE, template)
        self.facts.publish(TemplateForgotten(template))


class DirectRequest:
    """An engine request that bypassed the server."""

    def __init__(self, slices: SliceNames, choice: ChoiceObservation, report: ProgressSink) -> None:
        self.choice = choice
        self.slices = slices
        self._settled = report

    def forget(self, template: str) -> None:
        """Do nothing: these slices have no template."""

    def forget_key(self, key: str) -> None:
        """Do nothing: these slices have no key."""

    def change_draft(self, draft: str) -> None:
        self.slices = self.slices._replace(draft=draft)

    def settle(self, *, ended: bool = False) -> None:
        self.choice.settle(self.slices, self._settled, ended=ended)


def _do_nothing() -> None:
    pass
