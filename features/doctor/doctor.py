"""Search for the cause of fallen acceptance by trials.

``DoctoredEngine`` shows finished answers to the ``Doctor``, whose history raises suspicions.
``Doctor.run`` settles them one at a time, when the engine has room. It runs recent prompts again,
from the prefix cache and with their own cache salt. If the cached run accepts less, the cached
blocks of that prefix are at fault. If prompts of an earlier record accept less than before, the
draft's weights are at fault. Otherwise traffic has changed.

The last few prompts of each prefix stay in memory. They are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import EngineError
from eaglegate.engine.speculation.drafts.versions import DraftSwap, DraftVersion
from eaglegate.engine.speculation.policy.time_budget import TimeBudget
from eaglegate.engine.steps import Generate
from eaglegate.engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    SinkTap,
    StepSink,
)
from eaglegate.engine.wrapper import EngineWrapper
from eaglegate.features.doctor.diagnosis import Cause, Diagnosis, log_diagnosis
from eaglegate.features.doctor.suspicion import History, PositionCounts
from eaglegate.features.doctor.trial_runs import EarlierRecord, TrialRunner
from eaglegate.features.doctor.trials import (
    PairedTrial,
    differs_in_text,
    has_fallen,
    measure_fall,
)

log = logging.getLogger(__name__)

PREFIX_TOKENS = 64
"""Number of first tokens that identify a prefix."""
PREFIXES = 256
"""Number of prefixes with their own history."""
RECENT = 8
"""Number of prompts of a prefix that are kept for trials."""
RECORD = 16
"""Number of prompts in the earlier record."""
MOST_PROMPT = 8192
"""Most tokens of a prompt that is kept."""
BUDGET = 0.02
"""Share of the engine's time that trials may take."""
SAVED_S = 120.0
"""Most seconds of the budget that are saved, enough for the record and a few examinations on a slow
engine."""
SPARE_S = 60.0
"""Seconds of the saved budget that the record leaves for examinations."""
POLL_S = 0.05
PATIENCE_S = 120.0
"""Seconds after which a suspicion whose turn has come is dropped if it finds no room."""
DIAGNOSES = 50
"""Number of diagnoses that operators see."""
ALL = ""
"""Name for all prefixes together."""


@dataclass(slots=True)
class Prefix:
    """History and latest prompts of one prefix."""

    tenant: str = ""
    """Public name of the API key that sent it first."""
    history: History = field(default_factory=History)
    recent: OrderedDict[tuple[int, ...], EngineRequest] = field(default_factory=OrderedDict)

    def keep(self, request: EngineRequest) -> None:
        self.recent.pop(request.prompt, None)
        self.recent[request.prompt] = request
        while len(self.recent) > RECENT:
            self.recent.popitem(last=False)


class Doctor:
    """Doctor of one gateway. ``has_room`` tells if the engine could take a trial now."""

    def __init__(
        self,
        record: Callable[[Diagnosis], None],
        has_room: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without an engine. ``record`` receives the diagnoses."""
        self.draft = ""
        self.era = 0
        """Number that changes with the draft. Answers of an earlier era are ignored."""
        self._report, self._has_room = record, has_room
        self.clock = clock
        self._budget = TimeBudget(BUDGET, SAVED_S, clock, SAVED_S)
        self._runner = TrialRunner(self._budget, clock)
        self._record = EarlierRecord(self._runner)
        self._prefixes: OrderedDict[str, Prefix] = OrderedDict()
        self._all = Prefix()
        self._suspected: dict[str, float] = {}
        """Times at which suspicions arose, by prefix."""
        self._dropped = 0
        """Number of suspicions that found no room."""
        self._arrived = asyncio.Event()
        self.diagnoses: deque[Diagnosis] = deque(maxlen=DIAGNOSES)

    def attach(self, generate: Generate, info: EngineInfo) -> None:
        self._runner.attach(generate, info)

    def watch(self, engine: Engine) -> Engine:
        """``engine``, with finished answers shown to the doctor."""
        return DoctoredEngine(engine, self)

    def change_draft(self, version: DraftVersion, _: DraftSwap | None = None) -> None:
        """Start again with a new draft, whose acceptance cannot be compared with the old one's."""
        if version.fingerprint != self.draft:
            self.draft = version.fingerprint
            self.era += 1
            self._prefixes.clear()
            self._all = Prefix()
            self._record.clear()
            self._suspected.clear()

    def observe(self, request: EngineRequest, steps: Sequence[DecodeStep]) -> None:
        """Add the decode steps of a finished answer. Answers to images are left out, because the
        acceptance after one depends on it and not on the prefix."""
        counts = PositionCounts.of(steps)
        if not counts.reached or request.images:
            return
        name = name_prefix(request)
        prefix = self._prefixes.setdefault(name, Prefix(request.tenant))
        self._prefixes.move_to_end(name)
        if len(self._prefixes) > PREFIXES:
            self._forget_prefix()
        if request.num_prompt <= MOST_PROMPT:
            prefix.keep(request)
            self._all.keep(request)
        self._compare(name, prefix, counts)
        self._arrived.set()

    def _forget_prefix(self) -> None:
        """Forget the oldest prefix of the key with the most, so that no key displaces others."""
        counts = Counter(prefix.tenant for prefix in self._prefixes.values())
        tenant = max(counts, key=counts.__getitem__)
        del self._prefixes[next(n for n, p in self._prefixes.items() if p.tenant == tenant)]

    def _compare(self, name: str, prefix: Prefix, counts: PositionCounts) -> None:
        """Compare an answer's acceptance with the history of its prefix, and of all prefixes
        together.

        In the latter, an answer is compared with its own prefix's history, so that another mix of
        known prefixes raises no suspicion. An answer of a new prefix is compared with the history
        of all.
        """
        history, total_history = prefix.history, self._all.history
        if history.is_learnt:
            if history.compare(counts, history):
                self._suspect(name)
        else:
            history.learn(counts)
        if not total_history.is_learnt:
            total_history.learn(counts)
        elif total_history.compare(counts, history if history.is_learnt else total_history):
            self._suspect(ALL)

    def _suspect(self, name: str) -> None:
        self._suspected.setdefault(name, self.clock())

    async def run(self) -> None:
        """Settle suspicions until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                await self._complete_record()
                while self._suspected:
                    name = self._choose_suspicion()
                    if await self._wait_for_room():
                        await self.examine(name)
                    else:
                        self._dropped += 1
                        self._settle(name)
            except EngineError as error:
                log.warning("doctor: a trial failed: %s", error)
                self._suspected.clear()
            except Exception as error:
                log.error("doctor: a trial failed: %s", type(error).__name__)
                self._suspected.clear()

    def _choose_suspicion(self) -> str:
        """Return the oldest suspicion. That of all prefixes together comes last, as a single one
        may explain it."""
        return min(self._suspected, key=lambda name: (name == ALL, self._suspected[name]))

    async def _wait_for_room(self) -> bool:
        start = self.clock()
        while self.clock() - start < PATIENCE_S:
            if self._budget.has_time() and self._has_room():
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def _complete_record(self) -> None:
        """Add a recent prompt to the earlier record, unless there is a suspicion."""
        if self._suspected or len(self._record) >= RECORD:
            return
        candidates = [
            request for request in self._all.recent.values() if request not in self._record
        ]
        if candidates and self._budget.has_time(SPARE_S) and self._has_room():
            (run,) = await self._runner.run((candidates[-1], True))
            if not self._suspected:
                self._record.add(candidates[-1], run)

    async def examine(self, name: str) -> Diagnosis:
        """Settle a suspicion. Raises EngineError."""
        prefix = self._prefixes.get(name, self._all)
        cache_trials = await self._runner.try_cached(
            [*prefix.recent.values()], covers_all=name == ALL
        )
        if has_fallen(cache_trials) or differs_in_text(cache_trials):
            return self._conclude(name, Cause.CACHE, cache_trials)
        record_trials = await self._record.try_again()
        if has_fallen(record_trials):
            return self._conclude(name, Cause.WEIGHTS, record_trials)
        has_comparison = any(trial.agrees for trial in record_trials)
        cause = Cause.TRAFFIC if has_comparison else Cause.UNKNOWN
        return self._conclude(name, cause, record_trials, len(cache_trials))

    def _conclude(
        self, name: str, cause: Cause, trials: Sequence[PairedTrial], num_others: int = 0
    ) -> Diagnosis:
        """Record the diagnosis of ``trials``. ``num_others`` counts further trials before them."""
        prefix = self._prefixes.get(name, self._all)
        diagnosis = Diagnosis(
            at=time.time(),
            draft=self.draft,
            prefix=name,
            cause=cause,
            fall=measure_fall(trials),
            trials=len(trials) + num_others,
            answers=prefix.history.since,
        )
        self._settle(name)
        prefix.history = History()
        self.diagnoses.append(diagnosis)
        self._report(diagnosis)
        log_diagnosis(diagnosis)
        return diagnosis

    def _settle(self, name: str) -> None:
        """End a suspicion. It explains the evidence of all prefixes together."""
        self._suspected.pop(name, None)
        self._suspected.pop(ALL, None)
        for prefix in (self._all, self._prefixes.get(name, self._all)):
            prefix.history.clear_evidence()

    def describe(self) -> dict[str, Any]:
        """Describe the histories, the suspicions and the last diagnoses for operators."""
        return {
            "draft": self.draft,
            "engine_share": round(self._budget.share_spent, 6),
            "record": len(self._record),
            "all": _describe(self._all.history),
            "prefixes": {name: _describe(item.history) for name, item in self._prefixes.items()},
            "suspected": [*self._suspected],
            "dropped": self._dropped,
            "diagnoses": [item.to_json() for item in reversed(self.diagnoses)],
        }


def _describe(history: History) -> dict[str, Any]:
    places = range(len(history.counts.reached))
    return {
        "answers": history.answers,
        "learnt": history.is_learnt,
        "conditional_acceptance": [round(history.counts.rate(place), 4) for place in places],
        "evidence_nats": round(history.evidence, 3),
    }


def name_prefix(request: EngineRequest) -> str:
    """Return a hash of the inputs that determine a prompt's first cached block."""
    prefix = (request.cache_salt, request.adapter, request.prompt[:PREFIX_TOKENS])
    return blake2b(repr(prefix).encode(), digest_size=6).hexdigest()


class DoctoredEngine(EngineWrapper):
    """Wrapper of an engine that shows finished answers to ``doctor``."""

    def __init__(self, engine: Engine, doctor: Doctor) -> None:
        super().__init__(engine)
        self._doctor = doctor

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        steps, era = list[DecodeStep](), self._doctor.era
        await self._engine.generate(request, SinkTap(sink, lambda step: steps.extend(step.decode)))
        if era == self._doctor.era:
            self._doctor.observe(request, steps)
