"""Explanations of requests: the time of one request, step by step, without its text.

A bounded ring keeps the newest requests, the slowest, the worst by acceptance, and the failed ones.
The parts of a request are disjoint and add up to its wall time: ``receiving`` the body, ``queue``
of the gateway, ``rendering`` the prompt, ``grammar`` compilation, ``engine queue``, ``prefill``,
``decode`` (drafting and verifying), ``recovery`` after the loss of an engine, ``parsing``,
``writing`` including waits for a slow client, and ``closing``.
"""

from __future__ import annotations

import heapq
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter, sub
from typing import Any

from eaglegate.engine.events import Ending
from eaglegate.engine.types import DecodeStep, DepthReason, UndraftedReason
from eaglegate.observability.facts import AnswerAudited
from eaglegate.observability.middleware import HttpExchange
from eaglegate.observability.observation import ChoiceRecord, RequestObservation, RequestRecord
from eaglegate.observability.sequence import TRACKED, SequenceTimeline
from eaglegate.observability.windows import PHASE, name_slices

RECENT, SLOWEST, WORST, FAILED = 256, 32, 32, 64
"""Number of requests kept of each kind."""
KEPT_S = 3600.0
"""Seconds for which a slow or badly accepted request is kept."""
ENOUGH_STEPS = 20
"""Verify steps that a request needs to be listed among the worst accepted."""
MOST_RUNS = 256
"""Runs of steps that an explanation lists; the last one covers the rest."""
COUNTS = attrgetter("drafted", "accepted", "delivered")
PLANNED = attrgetter("planned")
LOOKUP = attrgetter("lookup")
REASONS = (None, *DepthReason)
_PLACES = {reason: index for index, reason in enumerate(REASONS)}
FINE = frozenset({Ending.COMPLETED, Ending.CLIENT_GONE})
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChoiceTrack:
    """Decode steps of one choice, as numbers."""

    seconds: array[float]
    """Seconds of each step since the previous one."""
    counts: array[int]
    """Three numbers per step: tokens drafted, accepted and delivered."""
    reasons: Mapping[int, UndraftedReason]
    """Reason why nothing was drafted, by step."""
    lookups: array[int]
    """1 for each step whose drafted tokens came from a lookup, else 0."""
    planned: array[int]
    """The planner's reason for each step's depth, as an index of ``REASONS``."""
    num_omitted: int
    """Decode steps that were not kept."""
    queued_s: float | None
    preemptions: int
    interruptions: tuple[tuple[float, float, str], ...]
    """Losses of the engine as (time, seconds until the next step, outcome)."""

    @classmethod
    def of(cls, timeline: SequenceTimeline, num_steps: int) -> ChoiceTrack:
        """Return the track of a choice that had ``num_steps`` decode steps."""
        track = timeline.track[:TRACKED]
        times = [step_at for step_at, _ in track]
        gaps = map(sub, times, times[:1] + times)
        steps: list[DecodeStep] = []
        seconds = array("f")
        for gap, (_, account) in zip(gaps, track, strict=True):
            if account:
                steps += account
                seconds.append(gap)
                if len(account) > 1:  # several steps arrived at once
                    seconds.extend([0.0] * (len(account) - 1))
        return cls(
            seconds=seconds,
            counts=array("L", chain.from_iterable(map(COUNTS, steps))),
            lookups=array("B", map(LOOKUP, steps)),
            planned=array("B", map(_PLACES.__getitem__, map(PLANNED, steps))),
            reasons={index: step.undrafted for index, step in enumerate(steps) if step.undrafted},
            num_omitted=max(0, num_steps - len(seconds)),
            queued_s=timeline.queued_s,
            preemptions=timeline.preemptions,
            interruptions=tuple(_measure_recoveries(timeline.interruptions, times)),
        )

    def count_planned(self, first: int, steps: int) -> dict[str, int]:
        """Count the steps from ``first`` on by the planner's reason; empty without a planner."""
        counts = Counter(self.planned[first : first + steps])
        return {
            name.value: counts[index]
            for index, name in enumerate(REASONS)
            if name and counts[index]
        }

    def steps(self) -> Iterator[tuple[float, int, int, int, str | None]]:
        """Yield (seconds, drafted, accepted, delivered, reason why nothing was drafted) for each
        step."""
        for index, seconds in enumerate(self.seconds):
            drafted, accepted, delivered = self.counts[3 * index : 3 * index + 3]
            reason = self.reasons.get(index)
            yield seconds, drafted, accepted, delivered, reason and reason.value


def _measure_recoveries(
    losses: Sequence[tuple[float, str]], steps: Sequence[float]
) -> Iterator[tuple[float, float, str]]:
    """Yield the losses with their recovery times. A loss during another recovery adds no time."""
    recovery_end = 0.0
    for lost_at, outcome in losses:
        resumed_at = next((step for step in steps if step > lost_at), lost_at)
        yield lost_at, max(0.0, resumed_at - max(lost_at, recovery_end)), outcome
        recovery_end = max(recovery_end, resumed_at)


@dataclass(slots=True)
class ExplainedRequest:
    """A finished request, without its messages and its answer."""

    record: RequestRecord
    tracks: tuple[ChoiceTrack, ...]
    at: float
    """``time.time()`` at the end of the request."""
    captured: bool = False
    request_id: str = ""
    path: str = ""
    status: int = 0
    before_s: float = 0.0
    """Seconds between the request's head and its validated body."""
    after_s: float = 0.0
    """Seconds between the last event and the end of the response."""

    audits: list[Row] = field(default_factory=list)
    """Results of audits of the request's choices."""

    @property
    def id(self) -> str:
        return self.record.facts.id

    @property
    def wall_s(self) -> float:
        return self.before_s + self.record.duration + self.after_s

    @property
    def failed(self) -> bool:
        has_losses = any(track.interruptions for track in self.tracks)
        return has_losses or self.record.ending not in FINE


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that was refused before it reached an engine."""

    request_id: str
    path: str
    status: int
    code: str
    wall_s: float
    at: float

    @property
    def id(self) -> str:
        return self.request_id


Entry = ExplainedRequest | RefusedRequest


@dataclass(slots=True)
class _Extremes:
    """The recent entries with the highest scores."""

    limit: int
    heap: list[tuple[float, int, ExplainedRequest]] = field(default_factory=list)

    def add(self, score: float, serial: int, entry: ExplainedRequest) -> None:
        self._forget(entry.at - KEPT_S)
        if len(self.heap) < self.limit:
            heapq.heappush(self.heap, (score, serial, entry))
        elif score > self.heap[0][0]:
            heapq.heapreplace(self.heap, (score, serial, entry))

    def list(self, now: float) -> list[ExplainedRequest]:
        self._forget(now - KEPT_S)
        return [entry for _, _, entry in sorted(self.heap, key=lambda row: -row[0])]

    def _forget(self, start: float) -> None:
        """Forget the entries before ``start``."""
        self.heap = [row for row in self.heap if row[2].at > start]
        heapq.heapify(self.heap)


class ExplanationRing:
    """The requests that can be explained. Bounded, and without any text."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._clock = wall_clock
        self._serial = 0
        self._recent: deque[Entry] = deque(maxlen=RECENT)
        self._failed: deque[Entry] = deque(maxlen=FAILED)
        self._slowest = _Extremes(SLOWEST)
        self._worst = _Extremes(WORST)

    def add(self, observation: RequestObservation, record: RequestRecord) -> None:
        """Add a finished request. Its HTTP exchange may still be open."""
        facts = replace(record.facts, messages=(), tools=())
        tracks = tuple(
            ChoiceTrack.of(timeline, choice.totals.decode_steps)
            for timeline, choice in zip(observation.sequences.values(), record.choices, strict=True)
        )
        entry = ExplainedRequest(
            replace(record, facts=facts), tracks, self._clock(), observation.session is not None
        )
        observation.explained = entry
        self._serial += 1
        self._recent.append(entry)
        if entry.failed:
            self._failed.append(entry)
        self._slowest.add(record.duration, self._serial, entry)
        length = record.totals.acceptance_length
        if length is not None and record.totals.verify_steps >= ENOUGH_STEPS:
            self._worst.add(-length, self._serial, entry)

    def add_audit(self, audit: AnswerAudited) -> None:
        """Add an audit's result to its request, if that is still kept."""
        for entry in self._list_entries():
            if isinstance(entry, ExplainedRequest) and (
                audit.sequence in entry.record.facts.sequences
            ):
                choice = entry.record.facts.sequences.index(audit.sequence)
                entry.audits.append({"choice": choice, **audit.result})
                return

    def complete(self, exchange: HttpExchange) -> None:
        """Add the facts of a finished HTTP exchange."""
        observation = exchange.observation
        if observation is None:
            self._add_refusal(exchange)
        elif isinstance(entry := observation.explained, ExplainedRequest):
            facts = entry.record.facts
            entry.request_id, entry.path = exchange.request_id, exchange.path[:200]
            entry.status = exchange.status
            entry.before_s = max(0.0, facts.arrived - exchange.started)
            entry.after_s = max(0.0, exchange.ended - facts.arrived - entry.record.duration)

    def _add_refusal(self, exchange: HttpExchange) -> None:
        if exchange.method != "POST" or exchange.status < 400:
            return
        wall_s = exchange.ended - exchange.started
        path, code = exchange.path[:200], exchange.refused
        entry = RefusedRequest(
            exchange.request_id, path, exchange.status, code, wall_s, self._clock()
        )
        self._recent.append(entry)
        self._failed.append(entry)

    def find(self, name: str) -> list[Entry]:
        """Return the request whose answer has this id. Without one, return the requests with this
        ``x-request-id``, newest first: clients choose it, and may choose another client's."""
        entries = self._list_entries()
        for entry in entries:
            if isinstance(entry, ExplainedRequest) and entry.id == name:
                return [entry]
        return [*{id(entry): entry for entry in entries if entry.request_id == name}.values()]

    def _list_entries(self) -> list[Entry]:
        now = self._clock()
        kept = self._slowest.list(now), self._worst.list(now)
        return [*reversed(self._recent), *reversed(self._failed), *chain(*kept)]

    def list(self, limit: int = 50, kind: str = "", name: str = "") -> Row:
        """Return one line per request, newest or most extreme first. If ``kind`` is given, only the
        slice ``name`` of that kind."""
        lists: dict[str, Sequence[Entry]] = {
            "recent": [*reversed(self._recent)],
            "slowest": self._slowest.list(self._clock()),
            "worst_accepted": self._worst.list(self._clock()),
            "failed": [*reversed(self._failed)],
        }
        return {
            list_name: [*map(summarize, [e for e in entries if _is_in(e, kind, name)][:limit])]
            for list_name, entries in lists.items()
        }


def _is_in(entry: Entry, kind: str, name: str) -> bool:
    """Return True if the request is counted in the slice, or if no ``kind`` is given."""
    if not kind:
        return True
    if isinstance(entry, RefusedRequest):
        return False
    if kind == PHASE:
        return any(name == phase for choice in entry.record.choices for phase in choice.phases)
    return name_slices(entry.record.slices).get(kind) == name


def summarize(entry: Entry) -> Row:
    """Return a request as one line of a list."""
    row: Row = {
        "id": entry.id,
        "request_id": entry.request_id,
        "at": datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="milliseconds"),
        "path": entry.path,
        "status": entry.status,
        "wall_ms": _ms(entry.wall_s),
    }
    if isinstance(entry, RefusedRequest):
        return row | {"outcome": "refused", "code": entry.code}
    record = entry.record
    return row | {
        "outcome": record.ending.value,
        "workload": record.slices.labels.workload,
        "prompt_tokens": record.facts.prompt_tokens,
        "completion_tokens": record.tokens,
        "ttft_ms": None if record.ttft is None else _ms(record.ttft),
        "acceptance_length": _round(record.totals.acceptance_length),
    }


def explain(entry: Entry, planner: Mapping[str, Any]) -> Row:
    """Return everything known about a request. ``planner`` is its description, empty without a
    planner."""
    row = summarize(entry)
    if isinstance(entry, RefusedRequest):
        return row | {"parts": [{"name": "gateway", "ms": row["wall_ms"], "share": 1.0}]}
    record = entry.record
    facts, totals = record.facts, record.totals
    usages = [choice.usage for choice in record.choices if choice.usage is not None]
    return row | {
        "api": facts.api,
        "model": facts.model,
        "lane": facts.lane,
        "key": facts.key,
        "stream": facts.stream,
        "arm": facts.arm,
        "captured": entry.captured,
        "audits": entry.audits,
        "cached_tokens": usages[0].cached if usages else None,
        "reasoning_tokens": sum(usage.reasoning for usage in usages),
        "drafts": list(record.drafts),
        "parts": list_parts(entry),
        "decode": split_decode(entry, planner),
        "speculation": {
            "verify_steps": totals.verify_steps,
            "drafted": totals.proposed,
            "accepted": totals.accepted,
            "rejected": totals.proposed - totals.accepted,
            "lookup_steps": totals.lookup_steps,
            "lookup_accepted": totals.lookup_accepted,
            "acceptance_length": _round(totals.acceptance_length),
            "fallback_ratio": _round(totals.fallback_ratio),
        },
        "choices": [
            _explain_choice(track, choice, facts.arrived)
            for track, choice in zip(entry.tracks, record.choices, strict=True)
        ],
    }


def list_parts(entry: ExplainedRequest) -> list[Row]:
    """Return the disjoint parts of the wall time, in order of time."""
    record, times = entry.record, entry.record.facts.times
    first_s = record.duration if record.ttft is None else record.ttft
    engine_s = max(0.0, first_s - record.queued)
    queue_times = [track.queued_s for track in entry.tracks if track.queued_s is not None]
    queued_s = min(engine_s, max(queue_times, default=0.0))
    recovery = list(_sum_recoveries(entry.tracks, record.facts.arrived + first_s))
    recovery[0] = min(recovery[0], engine_s - queued_s)
    generation_s = max(0.0, record.duration - first_s)
    reading_s = min(times.reading, generation_s)
    writing_s = min(times.writing, generation_s - reading_s)
    recovery[1] = min(recovery[1], generation_s - reading_s - writing_s)
    gateway = max(0.0, record.queued - times.rendering - times.compiling)
    parts = {
        "receiving": entry.before_s,
        "queue": gateway,
        "rendering": min(times.rendering, record.queued),
        "grammar": min(times.compiling, record.queued),
        "engine queue": queued_s,
        "prefill": engine_s - queued_s - recovery[0],
        "decode": generation_s - reading_s - writing_s - recovery[1],
        "recovery": sum(recovery),
        "parsing": reading_s,
        "writing": writing_s,
        "closing": entry.after_s,
    }
    wall_s = entry.wall_s or 1.0
    return [
        {"name": name, "ms": _ms(seconds), "share": round(seconds / wall_s, 4)}
        for name, seconds in parts.items()
    ]


def _sum_recoveries(tracks: Sequence[ChoiceTrack], first_at: float) -> tuple[float, float]:
    """Return the seconds of recovery before and after the first token. Time in which several
    choices wait counts once."""
    losses = sorted(
        (lost_at, lost_at + seconds)
        for track in tracks
        for lost_at, seconds, _ in track.interruptions
    )
    before_first_s = after_first_s = recovery_end = 0.0
    for lost_at, end in losses:
        begin, recovery_end = max(lost_at, recovery_end), max(end, recovery_end)
        before_first_s += max(0.0, min(recovery_end, first_at) - begin)
        after_first_s += max(0.0, recovery_end - max(begin, first_at))
    return before_first_s, after_first_s


def split_decode(entry: ExplainedRequest, planner: Mapping[str, Any]) -> Row | None:
    """Split the time of decode steps into drafting, verifying and rejected work.

    This is an estimate: the planner's costs of a step of one request, scaled to the time of each
    step. A step that verified a lookup is charged one pass of the draft, which makes at least one
    token beside a lookup. None without a planner.
    """
    cost = planner.get("cost", {}).get("milliseconds")
    if not cost:
        return None
    drafting_s = verifying_s = rejected_s = 0.0
    for track in entry.tracks:
        for (seconds, num_drafted, num_accepted, _, _), is_lookup in zip(
            track.steps(), track.lookups, strict=True
        ):
            num_passes = min(num_drafted, 1) if is_lookup else num_drafted
            draft = num_passes and cost["drafting"] + num_passes * (
                cost["depth"] + cost["depth_and_request"]
            )
            verify = cost["fixed"] + cost["request"] + num_drafted * cost["verified_token"]
            verify += cost["verifying"] if num_drafted else 0.0
            num_lost = max(0, num_drafted - num_accepted)
            lost_share = 0.0 if is_lookup or not num_drafted else num_lost / num_drafted
            waste = lost_share * draft + num_lost * cost["verified_token"]
            step_cost = draft + verify
            drafting_s += seconds * draft / step_cost
            verifying_s += seconds * verify / step_cost
            rejected_s += seconds * waste / step_cost
    return {
        "drafting_ms": _ms(drafting_s),
        "verifying_ms": _ms(verifying_s),
        "of_which_rejected_ms": _ms(rejected_s),
        "estimated_by": "the planner's step costs",
    }


def _explain_choice(track: ChoiceTrack, choice: ChoiceRecord, arrived_at: float) -> Row:
    return {
        "finish": choice.finish,
        "tool_calls": [outcome.value for outcome in choice.tools],
        "preemptions": track.preemptions,
        "interruptions": [
            {"at_ms": _ms(lost_at - arrived_at), "recovery_ms": _ms(seconds), "outcome": outcome}
            for lost_at, seconds, outcome in track.interruptions
        ],
        "steps": len(track.seconds) + track.num_omitted,
        "planned": track.count_planned(0, len(track.planned)),
        "by_depth": _count_depths(track),
        "runs": list_runs(track),
    }


def _count_depths(track: ChoiceTrack) -> list[Row]:
    counts: Counter[tuple[int, str | None]] = Counter()
    tokens: Counter[tuple[int, str | None]] = Counter()
    for _, drafted, _, delivered, reason in track.steps():
        counts[drafted, reason] += 1
        tokens[drafted, reason] += delivered
    return [
        {"drafted": drafted, "reason": reason, "steps": steps, "tokens": tokens[drafted, reason]}
        for (drafted, reason), steps in sorted(counts.items(), key=lambda item: item[0][0])
    ]


def list_runs(track: ChoiceTrack) -> list[Row]:
    """Return runs of consecutive steps with the same number of drafted tokens and the same
    reason."""
    runs: list[Row] = []
    token = 0
    for seconds, drafted, accepted, delivered, reason in track.steps():
        row = runs[-1] if runs else None
        if row is None or (
            (row["drafted"], row["reason"]) != (drafted, reason) and len(runs) < MOST_RUNS
        ):
            row = {
                "from_token": token, "drafted": drafted, "reason": reason,
                "steps": 0, "accepted": 0, "tokens": 0, "ms": 0.0,
            }  # fmt: skip
            runs.append(row)
        row["steps"] += 1
        row["accepted"] += accepted
        row["tokens"] += delivered
        row["ms"] += 1000 * seconds
        token += delivered
    first = 0
    for run in runs:
        run["ms"] = round(run["ms"], 2)
        run["planned"] = track.count_planned(first, run["steps"])
        run["lookups"] = sum(track.lookups[first : first + run["steps"]])
        first += run["steps"]
    return runs


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
