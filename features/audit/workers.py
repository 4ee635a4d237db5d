"""Scorers of workers' answers: the workers themselves, by their log probabilities of prompts.

A worker that is asked for ``prompt_logprobs`` reads the prompt without cached blocks and without a
draft, so it can score an answer as a part of a prompt. An answer is scored by another worker than
its maker if there is one, which finds damaged weights as well.

Each worker is probed before it scores: it reads known texts of several lengths twice and continues
them. Its numbers must agree with each other and with those of the other workers. They do not, for
example, on vLLM's first runner with graphs and a padded drafter (vllm#53488). The difference that
is left is rounding, and gives the margin of near ties.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eaglegate.engine.base import ReadsPrompts
from eaglegate.engine.errors import EngineError, EngineFailed, RequestRejected
from eaglegate.engine.fleet.fleet import Fleet
from eaglegate.engine.fleet.types import FindingKind, WorkerFinding
from eaglegate.engine.fleet.worker import Worker
from eaglegate.engine.speculation.accounts.rounding import TIES
from eaglegate.engine.speculation.accounts.scores import (
    UNPACED,
    AnswerScores,
    AuditPace,
    Choosing,
    ScoresAnswers,
    ScoringRules,
)
from eaglegate.engine.steps import Generate
from eaglegate.engine.supervision.pool import EngineSession
from eaglegate.engine.types import (
    LAST_PRIORITY,
    EngineRequest,
    PositionLogprobs,
    Sampling,
    Step,
)
from eaglegate.features.audit.audit_queue import AuditQueue
from eaglegate.features.audit.likelihood import (
    ALTERNATIVES,
    explain_unscorable,
    score_greedy,
    score_sampled,
)
from eaglegate.features.audit.records import AuditRecord, EvidenceWriter, FinishedAnswer

log = logging.getLogger(__name__)

LENGTHS = (24, 160, 1200)
"""Tokens of the known texts, on both sides of the sizes that vLLM captures as graphs."""
CONTINUED = 12
"""Tokens that a worker continues a known text with."""
TABLE = 128
"""Places of the text whose numbers are kept, to compare workers."""
MAX_DEVIATION = 0.5
"""Nats between two numbers of one text from which a worker is not reliable."""
MARGIN = 3.0
"""Margin of near ties by the deviation that was measured."""
LEAST_TIE = TIES["float32"]
MOST_ENTRIES = 1 << 16
"""Most log probabilities in a reply, about 5 MB, so that reading it holds up no stream."""
POLL_S = 1.0
PROBE_S = 120.0
RETRY_S = 600.0
"""Pause before a worker that failed its probe is probed again."""
LEAST_SUM, MOST_SUM = 1e-6, 1.01
"""Bounds on the sum of the alternatives' probabilities."""
Places = Sequence[PositionLogprobs]


@dataclass(eq=False)
class WorkerScorer(ScoresAnswers):
    """Scores by one worker, in one of its sessions."""

    worker: Worker
    session: EngineSession
    engine: ReadsPrompts
    alternatives: int = ALTERNATIVES
    """Alternatives that the worker gives."""
    deviation: float = 0.0
    """Greatest difference between two numbers of the same text, in nats."""
    table: Places = ()
    """Numbers of the first places of the known text."""

    @property
    def tie(self) -> float:
        return max(LEAST_TIE, MARGIN * self.deviation)

    async def score(
        self,
        request: EngineRequest,
        answer: Sequence[int],
        dtype: str,
        pace: AuditPace = UNPACED,
    ) -> AnswerScores:
        """See ``eaglegate.engine.speculation.accounts.scores.ScoresAnswers``."""
        rules = replace(ScoringRules.of(request, answer[-1], dtype), tie=self.tie)
        is_greedy = rules.choosing is Choosing.GREEDY
        await pace.pause()
        start = time.monotonic()
        try:
            step = await self.read(
                (*request.prompt, *answer), len(request.prompt), 1 if is_greedy else None
            )
        finally:
            pace.charge(time.monotonic() - start)
        places = _check_places(step.prompt_logprobs, len(answer))
        if is_greedy:
            return score_greedy(places)
        return await asyncio.to_thread(score_sampled, places, rules, self.session.info.vocab_size)

    async def read(
        self,
        tokens: Sequence[int],
        first: int,
        alternatives: int | None = None,
        continued: int = 0,
    ) -> Step:
        """Read tokens as a prompt, and return their log probabilities from ``first`` on. Raises
        EngineError."""
        name, count = f"audit-{uuid.uuid4().hex}", alternatives or self.alternatives
        sampling = Sampling(
            max_tokens=max(1, continued),
            temperature=0.0,
            ignore_eos=True,
            logprobs=count if continued else None,
            prompt_logprobs=count,
        )
        request = EngineRequest(
            id=name,
            prompt=tuple(tokens),
            sampling=sampling,
            depth=0,
            priority=LAST_PRIORITY,
            cache_salt=name,
        )
        return await self.engine.read_prompt(request, first)

    async def probe(self, text: Sequence[int]) -> str | None:
        """Measure the deviation; return the reason why the worker cannot score. Raises
        EngineError."""
        room = self.session.info.max_model_len - CONTINUED - 1
        for length in sorted({min(length, len(text), room) for length in LENGTHS}):
            known = text[: max(2, length)]
            step = await self.read(known, 1, continued=CONTINUED)
            first = _check_places(step.prompt_logprobs, length - 1)
            again = await self.read((*known, *step.token_ids), 1)
            second = _check_places(again.prompt_logprobs, length - 1 + len(step.token_ids))
            found = max(compare(first, second), compare(step.logprobs[:1], second[length - 1 :]))
            if found > MAX_DEVIATION:
                return (
                    f"its log probabilities of a prompt of {length} tokens differ by {found:.2f} "
                    "nats when they are asked for again (vllm#53488)"
                )
            # Further tokens may be damaged on their way here, which is for audits to find.
            continuation = zip(step.logprobs, second[length - 1 :], strict=False)
            for place, other in continuation:
                if (difference := compare((place,), (other,))) > MAX_DEVIATION:
                    break
                found = max(found, difference)
            self.deviation = max(self.deviation, found)
            self.table = first[:TABLE]
        return None


def _check_places(places: Sequence[PositionLogprobs | None] | None, count: int) -> Places:
    """Return the log probabilities of all places. Raises EngineFailed."""
    complete = [place for place in places or () if place is not None and place.top]
    if len(complete) != count:
        raise EngineFailed(
            f"the worker gave log probabilities of {len(complete)} of {count} tokens"
        )
    for place in complete:
        total = sum(math.exp(min(1.0, entry.logprob)) for entry in place.top)
        if not LEAST_SUM < total < MOST_SUM:
            raise EngineFailed("the worker gave numbers that are no log probabilities")
    return complete


def compare(places: Places, others: Places) -> float:
    """Return the greatest difference between two log probabilities of the same token, in nats."""
    largest = 0.0
    for place, other in zip(places, others, strict=False):
        values = {entry.token_id: entry.logprob for entry in (*other.top, other.chosen)}
        differences = [
            abs(entry.logprob - values[entry.token_id])
            for entry in place.top
            if entry.token_id in values
        ]
        largest = max(largest, *differences) if differences else math.inf
    return largest


@dataclass(eq=False)
class WorkerPanel:
    """The workers of a fleet as scorers of each other's answers.

    ``text`` are the tokens of a known text. ``has_room`` is that of ``AuditQueue``. With ``holds``
    a worker whose answer is violated gets no new requests.
    """

    fleet: Fleet
    text: Sequence[int]
    has_room: Callable[[], bool]
    holds: bool = False
    _scorers: dict[str, WorkerScorer] = field(default_factory=dict)
    _queues: dict[str, AuditQueue] = field(default_factory=dict)
    probed: dict[str, EngineSession] = field(default_factory=dict)
    """The sessions that were probed, by worker."""
    _retry_at: dict[str, float] = field(default_factory=dict)
    """Times from which workers are probed again."""

    @property
    def queues(self) -> Sequence[AuditQueue]:
        return [*self._queues.values()]

    async def run(self) -> None:
        """Probe each worker that begins to serve, until cancelled."""
        while True:
            for worker in [*self.fleet.workers.values()]:
                session = worker.session
                is_due = self._retry_at.get(worker.name, math.inf) <= time.monotonic()
                is_new = self.probed.get(worker.name) is not session
                if worker.is_serving and session is not None and (is_new or is_due):
                    try:
                        await self._add(worker, session)
                    except Exception:
                        log.exception("probe of worker %s failed; it is not audited", worker.name)
                    self.probed[worker.name] = session
            for name in self.probed.keys() - self.fleet.workers.keys():
                self._remove(name)
                del self.probed[name]
                self._retry_at.pop(name, None)
            await asyncio.sleep(POLL_S)

    async def _add(self, worker: Worker, session: EngineSession) -> None:
        """Probe a worker, and let it score if its numbers are reliable."""
        self._remove(worker.name)
        reason: str | None = "it speaks text only"
        if (engine := session.engine.capability(ReadsPrompts)) is not None:
            scorer = WorkerScorer(worker, session, engine)
            reason = await _probe(scorer, self.text)
        worker.alarms.pop(FindingKind.SCORES, None)
        self._retry_at[worker.name] = math.inf if reason is None else time.monotonic() + RETRY_S
        if reason is not None:
            self._warn(worker, FindingKind.SCORES, f"its answers are not audited: {reason}")
            return
        self._scorers[worker.name] = scorer
        self._queues[worker.name] = AuditQueue(
            scorer,
            lambda: worker.is_serving and self.has_room(),
            lambda: worker.is_serving and worker.is_idle,
            tie=scorer.tie,
            name=worker.name,
        )
        self._compare(scorer)

    def _remove(self, name: str) -> None:
        self._scorers.pop(name, None)
        if (queue := self._queues.pop(name, None)) is not None:
            queue.waiting.clear()

    def _compare(self, scorer: WorkerScorer) -> None:
        """Compare a worker with the others, and warn if it has other weights than one of them."""
        for other in self._scorers.values():
            difference = compare(scorer.table, other.table)
            if difference > MAX_DEVIATION:
                for worker, peer in ((scorer, other), (other, scorer)):
                    self._warn(
                        worker.worker, FindingKind.SCORES,
                        f"its log probabilities of a known text differ by {difference:.2f} nats "
                        f"from those of {peer.worker.name}: one of them has other weights",
                    )  # fmt: skip
                continue
            for queue in (self._queues[scorer.worker.name], self._queues[other.worker.name]):
                queue.tie = max(queue.tie, MARGIN * difference)
                assert isinstance(queue.engine, WorkerScorer)
                queue.engine.deviation = max(queue.engine.deviation, difference)

    def _warn(self, worker: Worker, kind: FindingKind, text: str) -> None:
        log.warning("worker %s: %s: %s", worker.name, kind.value, text)
        worker.alarms[kind] = WorkerFinding(kind, text)

    def name_maker(self, request: str) -> str:
        """Return the worker that made the whole answer to a request; empty if several did."""
        makers = set(self.fleet.find_makers(request))
        return makers.pop() if len(makers) == 1 else ""

    def _find(self, name: str) -> WorkerScorer | None:
        """Return the scorer of a worker that serves in the session that was probed."""
        scorer = self._scorers.get(name)
        if scorer is None or scorer.worker.session is not scorer.session:
            return None
        return None if self._queues[name].is_closed else scorer

    def find_queue(self, answer: FinishedAnswer) -> AuditQueue | str:
        """Return the queue of the worker that scores an answer, or the reason why none does."""
        if not answer.worker:
            return "moved"
        if (maker := self._find(answer.worker)) is None:
            return "scorer"
        if answer.request.constraint is not None:
            return self._queues[answer.worker]
        if reason := explain_unscorable(answer.request):
            return reason
        held_names = self.fleet.reservations.held_names
        others = [
            self._queues[name]
            for name in self._scorers.keys() - held_names - {answer.worker}
            if (scorer := self._find(name)) and compare(scorer.table, maker.table) <= MAX_DEVIATION
        ]
        queue = min(
            others, key=lambda queue: len(queue.waiting), default=self._queues[answer.worker]
        )
        return _explain_size(answer, queue) or queue

    async def confirm(self, maker: str, judge: str) -> bool:
        """Return True if the worker that judged an answer still agrees with its maker on the known
        text. Otherwise one of the two has other weights than before."""
        made, judged = self._find(maker), self._find(judge)
        if made is judged:
            return True
        if made is None or judged is None:
            return False
        for scorer in (made, judged):
            step = await scorer.read(self.text[: TABLE + 1], 1)
            scorer.table = _check_places(step.prompt_logprobs, min(TABLE, len(self.text) - 1))
        if compare(made.table, judged.table) <= MAX_DEVIATION:
            return True
        self._compare(judged)
        return False

    def accuse(self, answer: FinishedAnswer, record: AuditRecord, write: EvidenceWriter) -> None:
        """Raise the alarm for the worker that made a violated answer, once until it is released."""
        worker = self.fleet.workers.get(answer.worker)
        if worker is None or FindingKind.AUDIT in worker.alarms:
            return
        file = write(answer, record)
        is_held = self.holds and self.fleet.hold(answer.worker)
        state = "It gets no new requests" if is_held else "It serves on"
        hint = f" To see it again: eaglegate audit replay {file}" if file else ""
        self._warn(
            worker, FindingKind.AUDIT,
            f"{_describe(worker)} gave an answer that is not the target's: {record.detail} "
            f"({record.choosing}, scored by {record.scorer}, answer {record.request}). {state} "
            f"until: eaglegate audit release {answer.worker}.{hint}",
        )  # fmt: skip

    def list_accused(self) -> list[str]:
        """Return the workers whose answers were violated."""
        workers = self.fleet.workers.values()
        return sorted(worker.name for worker in workers if FindingKind.AUDIT in worker.alarms)

    def release(self, name: str) -> bool:
        """Release a worker on behalf of an operator; return False if there was no alarm."""
        worker = self.fleet.workers.get(name)
        if worker is None or worker.alarms.pop(FindingKind.AUDIT, None) is None:
            return False
        self.fleet.reservations.held_names.discard(name)
        return True

    def find_witness(self, name: str) -> str:
        """Return the worker of a violation's file, or one that can stand in for it."""
        return name if self._find(name) else next(iter(self._scorers), "")

    def list_generators(self) -> list[tuple[str, Generate]]:
        """Return the workers that can score, and their ways to generate."""
        return [(name, scorer.session.engine.generate) for name, scorer in self._scorers.items()]

    def describe(self) -> list[Mapping[str, Any]]:
        """Describe the workers for operators."""
        ties = {name: round(queue.tie, 4) for name, queue in self._queues.items()}
        return [
            {
                "name": name,
                "version": worker.version,
                "scores": self._find(name) is not None,
                "near_tie_nats": ties.get(name),
                "alarms": [alarm.text for alarm in worker.alarms.values()],
            }
            for name, worker in sorted(self.fleet.workers.items())
        ]


async def _probe(scorer: WorkerScorer, text: Sequence[int]) -> str | None:
    """Probe a worker, with fewer alternatives if it refuses so many. Return why it cannot score."""
    for alternatives in (ALTERNATIVES, 5, 1):
        scorer.alternatives = alternatives
        try:
            async with asyncio.timeout(PROBE_S):
                return await scorer.probe(text)
        except RequestRejected as error:
            reason = f"it gives no log probabilities of prompts: {error}"
        except (EngineError, TimeoutError) as error:
            return f"its scores could not be read: {error or 'no answer in time'}"
    return reason


def _describe(worker: Worker) -> str:
    """Describe a worker, its version and its speculation, as far as known."""
    session = worker.session
    facts = (f"vLLM {worker.version}", session.info.speculation.summary) if session else ()
    return ", ".join((worker.name, *facts))


def _explain_size(answer: FinishedAnswer, queue: AuditQueue) -> str | None:
    """Return the reason why a worker cannot read an answer; None if it can."""
    scorer = queue.engine
    assert isinstance(scorer, WorkerScorer)
    sampling = answer.request.sampling
    is_greedy = ScoringRules.of(answer.request, 0, "").choosing is Choosing.GREEDY
    tokens = answer.request.num_prompt + len(answer.token_ids)
    entries = tokens * (2 if is_greedy else scorer.alternatives + 1)
    if tokens >= scorer.session.info.max_model_len or entries > MOST_ENTRIES:
        return "length"
    is_open = is_greedy or (sampling.top_k <= 0 and sampling.top_p >= 1)
    return None if is_open or sampling.top_k <= scorer.alternatives else "distribution"


def make_text(encode: Callable[[str, bool], Sequence[int]]) -> Sequence[int]:
    """Return the tokens of the known text, squares in words' places."""
    return list(encode(" ".join(str(number * number) for number in range(1, 400)), False))
