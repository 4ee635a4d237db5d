"""Metrics of speculation: acceptance and fallback, overall and by slice of the traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import Drafter
from eaglegate.observability.facts import (
    DraftForgotten,
    DraftSwapped,
    KeyForgotten,
    TemplateForgotten,
)
from eaglegate.observability.labels import LABELS, NO_KEY, TEXT, Labels
from eaglegate.observability.metrics.base import MetricGroup, Samples
from eaglegate.observability.observation import DecodeProgress, RequestRecord
from eaglegate.observability.sequence import PhaseShare
from eaglegate.observability.windows import SlidingWindow


class Acceptance(MetricGroup):
    """Verify steps (D), draft tokens (P), accepted and delivered tokens (A), accepted but cut
    tokens.

    Acceptance length, pooled: ``1 + sum(rate(eaglegate_accepted_tokens_total[5m])) /
    sum(rate(eaglegate_verify_steps_total[5m]))``. Without speculation neither series exists, so the
    quotient is absent, neither 0 nor 1. The engine's own count of accepted tokens is ``accepted +
    cut``, because it counts before a stop or a token limit cuts the answer.
    """

    def declare(self) -> None:
        self._steps = self.counter("verify_steps", "D: decode steps that verified a draft")
        self._drafted = self.counter("drafted_tokens", "P: draft tokens proposed")
        self._accepted = self.counter("accepted_tokens", "A: draft tokens accepted and delivered")
        self._cut = self.counter(
            "cut_tokens", "Draft tokens accepted, then cut by a stop or a token limit"
        )

    def record_progress(self, progress: DecodeProgress) -> None:
        totals, labels = progress.total.totals, progress.slices.labels
        if totals.verify_steps:
            self._steps(*labels).inc(totals.verify_steps)
            self._drafted(*labels).inc(totals.proposed)
            self._accepted(*labels).inc(totals.accepted)
            self._cut(*labels).inc(totals.cut)


class Drafters(MetricGroup):
    """Verify steps, draft tokens and accepted tokens by drafter: ``draft`` or ``lookup``.

    The sums over both equal the metrics without this label. Acceptance length of lookups:
    ``1 + sum(rate(eaglegate_drafter_accepted_tokens_total{drafter="lookup"}[5m])) /
    sum(rate(eaglegate_drafter_verify_steps_total{drafter="lookup"}[5m]))``
    """

    def declare(self) -> None:
        labels = (*LABELS, "drafter")
        self._steps = self.counter("drafter_verify_steps", "D by drafter", labels)
        self._drafted = self.counter("drafter_drafted_tokens", "P by drafter", labels)
        self._accepted = self.counter("drafter_accepted_tokens", "A by drafter", labels)

    def record_progress(self, progress: DecodeProgress) -> None:
        totals, labels = progress.total.totals, progress.slices.labels
        lookup = totals.lookup_steps, totals.lookup_proposed, totals.lookup_accepted
        draft = (
            totals.verify_steps - lookup[0],
            totals.proposed - lookup[1],
            totals.accepted - lookup[2],
        )
        for drafter, counts in ((Drafter.DRAFT, draft), (Drafter.LOOKUP, lookup)):
            if counts[0]:
                self._steps(*labels, drafter.value).inc(counts[0])
                self._drafted(*labels, drafter.value).inc(counts[1])
                self._accepted(*labels, drafter.value).inc(counts[2])


class AcceptancePerPosition(MetricGroup):
    """Accepted tokens (A_i) and drafted tokens by draft position.

    a_i: ``sum by (position) (rate(eaglegate_accepted_at_total[5m])) / ignoring(position) group_left
    sum(rate(eaglegate_verify_steps_total[5m]))``
    """

    def declare(self) -> None:
        labels = (*LABELS, "position")
        self._accepted = self.counter(
            "accepted_at", "A_i: verify steps that delivered the draft at this position", labels
        )
        self._drafted = self.counter(
            "drafted_at", "Verify steps that drafted this position", labels
        )

    def record_progress(self, progress: DecodeProgress) -> None:
        labels, totals = progress.slices.labels, progress.total.totals
        max_depth = self.scope.settings.max_depth
        for position, count in enumerate(totals.proposed_at[:max_depth]):
            self._drafted(*labels, str(position + 1)).inc(count)
            self._accepted(*labels, str(position + 1)).inc(totals.accepted_at[position])


class DecodeSteps(MetricGroup):
    """Decode steps by outcome: accepted (at least one draft token), or the reason of the fallback.

    Fallback ratio: ``sum(rate(eaglegate_decode_steps_total{outcome!="accepted"}[5m])) /
    sum(rate(eaglegate_decode_steps_total[5m]))``. Each single outcome gives its part by reason.
    """

    def declare(self) -> None:
        self._steps = self.counter(
            "decode_steps",
            "Decode steps: accepted, or fallen back because rejected, undrafted or off",
            (*LABELS, "outcome"),
        )

    def record_progress(self, progress: DecodeProgress) -> None:
        labels = progress.slices.labels
        for outcome, count in count_step_outcomes(progress.total.totals).items():
            if count:
                self._steps(*labels, outcome).inc(count)


class Balance(MetricGroup):
    """Terms that balance the account of tokens. At any moment, for any labels:

    ``eaglegate_completion_tokens_total`` = ``eaglegate_first_tokens_total``
    + ``eaglegate_accepted_tokens_total`` + ``sum without (outcome) (eaglegate_decode_steps_total)``
    - ``eaglegate_lost_bonus_tokens_total`` + ``eaglegate_unaccounted_tokens_total``

    if the engine reports its decode steps. Unaccounted tokens belong to answers that were cut off
    in an engine that accounts at the end, which is a remote worker.
    """

    def declare(self) -> None:
        self._first = self.counter("first_tokens", "Output tokens that came from prefill")
        self._lost = self.counter(
            "lost_bonus_tokens", "Decode steps whose bonus token a stop or a token limit removed"
        )
        self._unaccounted = self.counter(
            "unaccounted_tokens", "Output tokens of aborted requests that no reported step explains"
        )

    def record_progress(self, progress: DecodeProgress) -> None:
        labels, totals = progress.slices.labels, progress.total.totals
        self._first(*labels).inc(totals.first_tokens)
        self._lost(*labels).inc(totals.lost_bonus)
        if totals.imbalance > 0:
            self._unaccounted(*labels).inc(totals.imbalance)


class Unclaimed(MetricGroup):
    """Unclaimed work: decode steps that the engine made for requests whose client had left.

    Accepted and drafted tokens here, together with ``eaglegate_cut_tokens_total``,
    ``eaglegate_accepted_tokens_total`` and ``eaglegate_drafted_tokens_total``, add up to the
    engine's own ``vllm:spec_decode_*`` since it became ready.
    """

    def declare(self) -> None:
        self._add("verify_steps", "D", lambda totals: totals.verify_steps)
        self._add("drafted_tokens", "P", lambda totals: totals.proposed)
        self._add("accepted_tokens", "A", lambda totals: totals.accepted + totals.cut)

    def _add(self, name: str, symbol: str, pick: Callable[[Totals], int]) -> None:
        self.labelled_metric(
            f"unclaimed_{name}_total",
            f"{symbol}, for requests whose client had left",
            "engine",
            lambda: {engine: pick(totals) for engine, totals in self.scope.unclaimed()},
        )


class AcceptancePerRequest(MetricGroup):
    """1 + A / D of every choice that verified a draft. Its mean weighs all choices equally, while
    the pooled acceptance length weighs long answers more.

    ``sum(rate(eaglegate_request_acceptance_length_sum[5m])) /
    sum(rate(eaglegate_request_acceptance_length_count[5m]))``
    """

    BOUNDS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0)

    def declare(self) -> None:
        self._lengths = self.histogram(
            "request_acceptance_length", "1 + A / D, per choice with D > 0", self.BOUNDS
        )

    def record_requests(self, labels: Labels, records: list[RequestRecord]) -> None:
        lengths = (c.totals.acceptance_length for record in records for c in record.choices)
        self._lengths.observe(labels, [length for length in lengths if length is not None])


class SpeculationNow(MetricGroup):
    """The last minutes as gauges, for reading by eye; alerts use the counters.

    The gauges are pooled over ``window_s``. ``eaglegate_acceptance_length`` is absent while nothing
    was verified. The baseline is an exponential average of the time before the window.
    """

    def declare(self) -> None:
        self.computed_metric(
            "acceptance_length", "1 + A / D over the last minutes", LABELS, self._acceptance
        )
        self.computed_metric(
            "acceptance_length_baseline",
            "1 + A / D before the last minutes, trailing",
            LABELS,
            self._baseline,
        )
        self.computed_metric(
            "conditional_acceptance",
            "c_i = A_i / A_(i-1) over the last minutes",
            (*LABELS, "position"),
            self._conditional,
        )
        self.computed_metric(
            "fallback_ratio",
            "Decode steps on the target's plain path / all, over the last minutes, by reason",
            (*LABELS, "reason"),
            self._fallback,
        )

    def _windows(self) -> Iterable[tuple[Labels, SlidingWindow]]:
        return self.scope.book.by_labels()

    def _totals(self) -> Iterable[tuple[Labels, Totals]]:
        now = self.scope.clock()
        return ((labels, window.sums(now).totals) for labels, window in self._windows())

    def _acceptance(self) -> Samples:
        for labels, totals in self._totals():
            if totals.acceptance_length is not None:
                yield labels, totals.acceptance_length

    def _baseline(self) -> Samples:
        now = self.scope.clock()
        for labels, window in self._windows():
            baseline = window.baseline(now)
            if baseline is not None:
                yield labels, baseline

    def _conditional(self) -> Samples:
        max_depth = self.scope.settings.max_depth
        for labels, totals in self._totals():
            for position, value in enumerate(totals.conditional_acceptance[:max_depth]):
                if value is not None:
                    yield (*labels, str(position + 1)), value

    def _fallback(self) -> Samples:
        for labels, totals in self._totals():
            for reason, ratio in totals.fallback_by_reason.items():
                yield (*labels, reason), ratio


def count_step_outcomes(totals: Totals) -> dict[str, int]:
    """Return the decode steps by outcome. They add up to D + F."""
    return {
        "accepted": totals.verify_steps - totals.rejected,
        "rejected": totals.rejected,
        "undrafted": totals.undrafted,
        "off": totals.off,
    }


class SliceCounters(MetricGroup):
    """Base of the classes below: counters named after ``kind``, labelled with it, model and
    lane."""

    kind = ""
    counts: tuple[tuple[str, str, Callable[[PhaseShare], float]], ...] = (
        ("verify_steps", "D", attrgetter("totals.verify_steps")),
        ("accepted_tokens", "A", attrgetter("totals.accepted")),
        ("decode_steps", "D + F", attrgetter("totals.decode_steps")),
        ("fallback_steps", "D_0 + F", lambda s: s.totals.rejected + s.totals.plain_steps),
        ("decode_tokens", "Output tokens after the first", attrgetter("timed_tokens")),
        ("decode_seconds", "Time their steps took, summed over choices", attrgetter("seconds")),
    )
    """Name, help and value of each counter. The first two are absent without verify steps."""

    def declare(self) -> None:
        labels = ("model", "lane", self.kind)
        self._counters = [
            (self.counter(f"{self.kind}_{name}", f"{help_}, by {self.kind}", labels), read)
            for name, help_, read in self.counts
        ]

    def add(self, labels: Labels, name: str, share: PhaseShare) -> None:
        for counter, read in self._counters[0 if share.totals.verify_steps else 2 :]:
            counter(labels.model, labels.lane, name).inc(read(share))

    def remove(self, name: str) -> None:
        """Drop the series of one value of the label."""
        for counter, _ in self._counters:
            counter.remove(**{self.kind: name})


class ByContext(SliceCounters):
    """Acceptance by bucket of prompt length.

    ``1 + sum by (context) (rate(eaglegate_context_accepted_tokens_total[15m]))
    / sum by (context) (rate(eaglegate_context_verify_steps_total[15m]))``
    """

    kind = "context"

    def record_progress(self, progress: DecodeProgress) -> None:
        self.add(progress.slices.labels, progress.slices.context, progress.total)


class ByInput(SliceCounters):
    """Acceptance, fallback and TPOT after images; a draft may not have seen any.

    ``1 + sum by (input) (rate(eaglegate_input_accepted_tokens_total[15m]))
    / sum by (input) (rate(eaglegate_input_verify_steps_total[15m]))``
    """

    kind = "input"

    def record_progress(self, progress: DecodeProgress) -> None:
        if progress.slices.input != TEXT:
            self.add(progress.slices.labels, progress.slices.input, progress.total)


class ByPhase(SliceCounters):
    """Acceptance by phase (reasoning, content, tool_call): each step counts for the phase of its
    tokens.

    TPOT: ``sum by (phase) (rate(eaglegate_phase_decode_seconds_total[5m]))
    / sum by (phase) (rate(eaglegate_phase_decode_tokens_total[5m]))``
    """

    kind = "phase"

    def record_progress(self, progress: DecodeProgress) -> None:
        for phase, share in progress.shares.items():
            self.add(progress.slices.labels, phase.value, share)


class ByTemplate(SliceCounters):
    """Acceptance by fingerprint of system prompt and tool schemas. The most frequent ones keep
    their name, all others are ``other``.

    ``1 + sum by (template) (rate(eaglegate_template_accepted_tokens_total[15m])) / sum by
    (template) (rate(eaglegate_template_verify_steps_total[15m]))``
    """

    kind = "template"

    def declare(self) -> None:
        super().declare()
        self.on(TemplateForgotten, lambda fact: self.remove(fact.template))

    def record_progress(self, progress: DecodeProgress) -> None:
        self.add(progress.slices.labels, progress.slices.template, progress.total)


class ByDraft(SliceCounters):
    """Acceptance by fingerprint of the draft that served the step. Only the latest drafts keep
    their series.

    ``1 + sum by (draft) (rate(eaglegate_draft_accepted_tokens_total[15m]))
    / sum by (draft) (rate(eaglegate_draft_verify_steps_total[15m]))``
    """

    kind = "draft"

    def declare(self) -> None:
        super().declare()
        self._swaps = self.counter(
            "draft_swaps",
            "Changes of the serving draft: swap, trial, rollback, restart",
            ("kind",),
        )
        self._pause = self.counter(
            "draft_swap_pause_seconds", "Time without a step while drafts were exchanged", ("kind",)
        )
        self.on(DraftSwapped, self._count_swap)
        self.on(DraftForgotten, lambda fact: self.remove(fact.draft))

    def record_progress(self, progress: DecodeProgress) -> None:
        self.add(progress.slices.labels, progress.slices.draft, progress.total)

    def _count_swap(self, fact: DraftSwapped) -> None:
        self._swaps(fact.swap.kind).inc()
        self._pause(fact.swap.kind).inc(fact.swap.pause_s)


class ByKey(SliceCounters):
    """Acceptance, depth and wasted drafts by API key. Keys that no operator has named are
    ``other``. Absent without named keys.

    Acceptance length: ``1 + sum by (key) (rate(eaglegate_key_accepted_tokens_total[15m]))
    / sum by (key) (rate(eaglegate_key_verify_steps_total[15m]))``

    Mean depth: ``sum by (key) (rate(eaglegate_key_drafted_tokens_total[15m]))
    / sum by (key) (rate(eaglegate_key_decode_steps_total[15m]))``

    Share of wasted drafts: ``sum by (key) (rate(eaglegate_key_wasted_tokens_total[15m]))
    / sum by (key) (rate(eaglegate_key_drafted_tokens_total[15m]))``
    """

    kind = "key"
    counts = (
        *SliceCounters.counts,
        ("drafted_tokens", "P", attrgetter("totals.proposed")),
        ("wasted_tokens", "Draft tokens that the target rejected", attrgetter("totals.wasted")),
    )

    def declare(self) -> None:
        super().declare()
        self.on(KeyForgotten, lambda fact: self.remove(fact.key))

    def record_progress(self, progress: DecodeProgress) -> None:
        if progress.slices.key != NO_KEY:
            self.add(progress.slices.labels, progress.slices.key, progress.total)


GROUPS: tuple[type[MetricGroup], ...] = (
    Acceptance,
    Drafters,
    AcceptancePerPosition,
    AcceptancePerRequest,
    DecodeSteps,
    Balance,
    Unclaimed,
    SpeculationNow,
    ByContext,
    ByInput,
    ByPhase,
    ByTemplate,
    ByDraft,
    ByKey,
)
