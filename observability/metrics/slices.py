"""The same few counters by context, by phase and by template, each in metrics of its own."""

from __future__ import annotations

from observability.facts import DecodeProgress
from observability.labels import Labels
from observability.metrics.base import MetricGroup
from observability.sequence import PhaseShare


class SliceCounters(MetricGroup):
    """Base of the three: counters named after ``kind``, labelled with it, model and lane."""

    kind = ""

    def declare(self) -> None:
        labels = ("model", "lane", self.kind)
        name = self.kind + "_"
        by = f"by {self.kind}"
        self._verify = self.counter(name + "verify_steps", f"D, {by}", labels)
        self._accepted = self.counter(name + "accepted_tokens", f"A, {by}", labels)
        self._steps = self.counter(name + "decode_steps", f"D + F, {by}", labels)
        self._fallback = self.counter(name + "fallback_steps", f"D_0 + F, {by}", labels)
        self._tokens = self.counter(
            name + "decode_tokens", f"Output tokens after the first, {by}", labels
        )
        self._seconds = self.counter(
            name + "decode_seconds", f"Time their steps took, summed over choices, {by}", labels
        )

    def add(self, labels: Labels, name: str, share: PhaseShare) -> None:
        at, totals = (labels.model, labels.lane, name), share.totals
        if totals.verify_steps:
            self._verify(*at).inc(totals.verify_steps)
            self._accepted(*at).inc(totals.accepted)
        self._steps(*at).inc(totals.decode_steps)
        self._fallback(*at).inc(totals.rejected + totals.plain_steps)
        self._tokens(*at).inc(share.timed_tokens)
        self._seconds(*at).inc(share.seconds)


class ByContext(SliceCounters):
    """By prompt-length bucket.

    ``1 + sum by (context) (rate(eaglegate_context_accepted_tokens_total[15m]))
    / sum by (context) (rate(eaglegate_context_verify_steps_total[15m]))``
    """

    kind = "context"

    def record_progress(self, progress: DecodeProgress) -> None:
        self.add(progress.slices.labels, progress.slices.context, progress.whole)


class ByPhase(SliceCounters):
    """By phase (reasoning, content, tool_call): each step where its tokens came out.

    TPOT: ``sum by (phase) (rate(eaglegate_phase_decode_seconds_total[5m]))
    / sum by (phase) (rate(eaglegate_phase_decode_tokens_total[5m]))``
    """

    kind = "phase"

    def record_progress(self, progress: DecodeProgress) -> None:
        for phase, share in progress.shares.items():
            self.add(progress.slices.labels, phase.value, share)


class ByTemplate(SliceCounters):
    """By fingerprint of system prompt and tool schemas: the most frequent by name, else ``other``.

    ``1 + sum by (template) (rate(eaglegate_template_accepted_tokens_total[15m]))
    / sum by (template) (rate(eaglegate_template_verify_steps_total[15m]))``
    """

    kind = "template"

    def record_progress(self, progress: DecodeProgress) -> None:
        self.add(progress.slices.labels, progress.slices.template, progress.whole)

    def drop_template(self, template: str) -> None:
        for metric in (self._verify, self._accepted, self._steps, self._fallback):
            metric.remove(template=template)
        self._tokens.remove(template=template)
        self._seconds.remove(template=template)
