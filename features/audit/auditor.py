"""Audits of a share of the finished answers, scored again without the draft.

``AuditedEngine`` keeps the tokens of the selected answers until their audit. Each engine that
scores has a queue (``audit_queue.py``), which takes one at a time, when the engine is idle or has
room, for at most ``BUDGET`` of its time. An answer that finds no room is dropped and counted. No
prompt or answer is logged.

A violation takes speculation from the key's requests of that workload, and violations of several
keys take it from the workload (``holds.py``). A change of the draft gives it back until the
violated draft serves again, as in every second slot of a canary. An operator gives it back for
good.

Constrained answers are judged in another process (``judge.py``), which takes no time of the engine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msgspec import structs

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import EngineDead, EngineError, EngineFailed
from eaglegate.engine.speculation.accounts.rounding import find_tie
from eaglegate.engine.speculation.accounts.scores import Choosing, ScoresAnswers, ScoringRules
from eaglegate.engine.speculation.drafts.versions import DraftSwap, DraftVersion
from eaglegate.engine.speculation.policy.policy import draw_position
from eaglegate.engine.steps import Generate, read_steps
from eaglegate.engine.types import Drafter, EngineInfo, EngineRequest, SinkTap, Step, StepSink
from eaglegate.engine.wrapper import EngineWrapper
from eaglegate.features.audit.audit_queue import QUEUE, AuditQueue, NoRoom
from eaglegate.features.audit.evidence import (
    AuditOutcome,
    SequentialTest,
    judge_margins,
)
from eaglegate.features.audit.files import unpack
from eaglegate.features.audit.holds import AuditHold, AuditHolds, name_hold
from eaglegate.features.audit.judge import GrammarJudge
from eaglegate.features.audit.records import (
    AuditRecord,
    EvidenceWriter,
    FinishedAnswer,
)
from eaglegate.text.events import FinishReason

if TYPE_CHECKING:
    from eaglegate.features.audit.workers import WorkerPanel

log = logging.getLogger(__name__)

MOST_IMAGE_BYTES = 64 << 20
"""Most bytes of the images of all answers that wait for their audit."""
MOST_TOKENS = 32_768
"""Most tokens, prompt included, of an audited answer."""
MOST_IMAGE_TOKENS = 8192
"""The same for answers to images, whose prompt is read in one piece."""
PIXELS_PER_TOKEN = 1 << 15
"""Most pixels of an audited answer's images for each of its tokens, prompt included. Preparing more
takes longer than the tokens took: 1,000,000 pixels take 65 ms of a processor core."""
RECENT = 50
"""Number of audits that operators see."""
USUAL_PROMPT = 1024
"""Tokens of a prompt above which it is drawn less often for an audit by a worker."""
SALT = "audit"
MIXED = "-"
"""Stands for the draft of an answer during which the draft was exchanged."""


class Auditor:
    """Auditor of one gateway. ``has_room`` tells if the engine could take an audit now."""

    def __init__(
        self,
        share: float,
        holds: AuditHolds,
        record: Callable[[AuditRecord], None],
        drop: Callable[[str], None],
        decode: Callable[[Sequence[int]], str],
        has_room: Callable[[], bool],
        write: EvidenceWriter,
        clock: Callable[[], float] = time.monotonic,
        is_idle: Callable[[], bool] | None = None,
    ) -> None:
        """Set up without an engine. ``record`` takes each audit, and ``drop`` the reason why a
        selected answer was not audited (``metrics.py``). ``is_idle`` tells if no request runs; None
        does not wait for that."""
        self.share = share
        self.holds = holds
        self.draft = ""
        self._record, self._drop, self._decode = record, drop, decode
        self._has_room, self._write, self.clock = has_room, write, clock
        self._is_idle = is_idle or has_room
        self._queue: AuditQueue | None = None
        self._panel: WorkerPanel | None = None
        self._generate: Generate | None = None
        self._arrived = asyncio.Event()
        self._judge = GrammarJudge()
        self._tests: dict[tuple[str, str, str], SequentialTest] = {}
        """By draft, workload and key; by worker alone."""
        self._recent: deque[AuditRecord] = deque(maxlen=RECENT)

    def attach(
        self,
        engine: ScoresAnswers,
        generate: Generate,
        info: EngineInfo,
    ) -> None:
        """Audit with ``engine``, whose model has the data type in ``info``. ``generate`` makes the
        answers of replays.

        An engine whose settings may change text on purpose is not audited.
        """
        if info.speculation.lossy:
            log.warning("answers are not audited: %s", " ".join(info.speculation.lossy))
        else:
            dtype = info.details.get("dtype", "")
            self._queue = AuditQueue(
                engine, self._has_room, self._is_idle, self.clock, dtype, find_tie(dtype)
            )
            self._generate = generate

    def attach_workers(self, panel: WorkerPanel, generate: Generate) -> None:
        """Audit answers of workers, which ``panel`` finds scorers for."""
        self._panel, self._generate = panel, generate

    def watch(self, engine: Engine, may_keep: Callable[[], bool]) -> Engine:
        """``engine``, with the tokens of selected answers kept for their audit."""
        return AuditedEngine(engine, self, may_keep)

    def name_maker(self, request: str) -> str:
        """Return the worker that made the answer to a request; empty without workers."""
        return "" if self._panel is None else self._panel.name_maker(request)

    def selects(self, request: EngineRequest) -> bool:
        # A worker reads the whole prompt again, at once: a long one is drawn as rarely as it costs.
        length = request.num_prompt if self._panel else 0
        return draw_position(SALT, request.id) * max(1.0, length / USUAL_PROMPT) < self.share

    def submit(self, answer: FinishedAnswer) -> None:
        """Queue an answer for its audit. If it cannot be audited, count the drop."""
        if self._is_off or not answer.token_ids:
            return
        if answer.request.sampling.thinking_token_budget is not None:
            self._drop("rules")
        elif answer.request.num_prompt + len(answer.token_ids) > (
            MOST_IMAGE_TOKENS if answer.request.images else MOST_TOKENS
        ):
            self._drop("length")
        elif answer.request.images and not self._may_audit_images(answer):
            self._drop("images")
        elif isinstance(queue := self._find_queue(answer), str):
            self._drop(queue)
        elif len(queue.waiting) >= QUEUE:
            self._drop("queue")
        else:
            queue.waiting.append(answer)
            self._arrived.set()

    @property
    def _is_off(self) -> bool:
        return self._panel is None and (self._queue is None or self._queue.is_closed)

    @property
    def queues(self) -> Sequence[AuditQueue]:
        if self._panel is not None:
            return self._panel.queues
        return () if self._queue is None else (self._queue,)

    def _find_queue(self, answer: FinishedAnswer) -> AuditQueue | str:
        """Return the queue that audits an answer, or the reason why none does."""
        if self._panel is None:
            return self._queue or "error"
        return self._panel.find_queue(answer)

    def _may_audit_images(self, answer: FinishedAnswer) -> bool:
        """Return True if the images of waiting answers leave room for those of this one, and if it
        has enough tokens to be worth preparing them again."""
        images = answer.request.images
        waiting_images = [
            image
            for queue in self.queues
            for waiting in queue.waiting
            for image in waiting.request.images
        ]
        size = sum(len(image.data) for image in (*waiting_images, *images))
        pixels = sum(image.width * image.height for image in images)
        tokens = len(answer.request.prompt) + len(answer.token_ids)
        return size <= MOST_IMAGE_BYTES and pixels <= PIXELS_PER_TOKEN * tokens

    def change_draft(self, version: DraftVersion, _: DraftSwap | None = None) -> None:
        """Release the workloads of the previous draft, and hold those that this draft has lost."""
        if version.fingerprint == self.draft:
            return
        old_holds, self.draft = {*self.holds}, version.fingerprint
        new_holds = self.holds.change_draft(self.draft)
        if released_workloads := old_holds.difference(new_holds):
            log.warning(
                "speculation is on again for %s: the draft changed",
                ", ".join(sorted(released_workloads)),
            )
        if new_holds:
            log.warning("speculation is off for %s: this draft has lost it", ", ".join(new_holds))
        self._tests = {key: test for key, test in self._tests.items() if self.holds.knows(key[0])}

    def release(self, workload: str) -> bool:
        """Release a workload or a worker on behalf of an operator; return False if it was not
        held."""
        if self._panel is not None:
            self._tests = {key: test for key, test in self._tests.items() if key[0] != workload}
            return self._panel.release(workload)
        self._tests = {key: test for key, test in self._tests.items() if key[1] != workload}
        return self.holds.release(workload)

    def list_held(self) -> list[str]:
        """Return the workloads and workers that ``release`` takes."""
        return [*self.holds] if self._panel is None else self._panel.list_accused()

    async def replay(self, content: Any) -> dict[str, Any]:
        """Score the answer of a violation's file, and new answers generated with and without
        drafts.

        Raises ValueError for another file, and EngineError.
        """
        request, answer, depth = unpack(content)
        if self._is_off or self._generate is None:
            raise EngineFailed("The engine audits nothing.")
        generators: list[tuple[str, Generate, int | None, str]] = [
            ("with drafts", self._generate, depth, ""),
            ("without drafts", self._generate, 0, ""),
        ]
        worker = ""
        if self._panel is not None:
            worker = self._panel.find_witness(str(content["found"].get("worker", "")))
            generators = [
                (f"again by {name}", generate, None, name)
                for name, generate in self._panel.list_generators()
            ]
        results = {"stored": await self._describe_scores(request, answer, worker)}
        for name, generate, replay_depth, maker in generators:
            repetition = structs.replace(
                request, id=f"replay-{uuid.uuid4().hex}", depth=replay_depth
            )
            tokens: list[int] = []
            async with aclosing(read_steps(generate, repetition)) as steps:
                async for step in steps:
                    tokens += step.token_ids
            results[name] = await self._describe_scores(request, tokens, maker)
        return results

    async def _describe_scores(
        self, request: EngineRequest, answer: Sequence[int], worker: str
    ) -> dict[str, Any]:
        """Return the verdict on an answer, and its tokens that are not the target's choice."""
        if request.constraint is not None:
            breach = await self._judge.find_breach(request.constraint, self._decode(answer))
            return {"choosing": "grammar", "tokens": len(answer), "breach": breach}
        queue = self._find_queue(
            FinishedAnswer(request, tuple(answer), None, False, 0, "", 0.0, worker=worker)
        )
        if isinstance(queue, str):
            raise EngineFailed(f"The answer is not scored: {queue}.")
        scores = await queue.engine.score(request, answer, queue.dtype)
        differences = [
            {
                "place": place,
                "token": answer[place],
                "target": scores.best[place] if scores.best else None,
                "margin_nats": round(margin, 4) if math.isfinite(margin) else None,
            }
            for place, margin in enumerate(scores.margins)
            if margin > 0
        ]
        return {
            "choosing": ScoringRules.of(request, 0, queue.dtype).choosing,
            "tokens": len(answer),
            "outcome": judge_margins(scores, queue.tie),
            "near_tie_nats": queue.tie,
            "differing": differences[:RECENT],
            "evidence_nats": scores.evidence,
        }

    async def run(self) -> None:
        """Audit until cancelled."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                for queue in self.queues:
                    if queue.waiting and queue.task is None:
                        queue.task = asyncio.create_task(self._audit_waiting(queue))
                        tasks.add(queue.task)
                        queue.task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._judge.aclose()

    async def _audit_waiting(self, queue: AuditQueue) -> None:
        """Audit what waits in a queue, until audits have cost too many engines."""
        while queue.waiting and not queue.is_closed:
            answer = queue.waiting.popleft()
            if await queue.wait_for_room(answer.ended):
                await self._audit(answer, queue)
            else:
                self._drop("idle")
        if queue.is_closed:
            log.error(
                "audits %sare off: the engine was lost during %d of them",
                f"by {queue.name} " if queue.name else "", queue.deaths,
            )  # fmt: skip
            queue.waiting.clear()
        queue.task = None

    async def _is_fair(
        self, answer: FinishedAnswer, outcome: AuditOutcome, queue: AuditQueue
    ) -> bool:
        """Return False if a violation may be the fault of the worker that scored the answer."""
        if self._panel is None or outcome is not AuditOutcome.VIOLATED:
            return True
        return await self._panel.confirm(answer.worker, queue.name)

    async def _audit(self, answer: FinishedAnswer, queue: AuditQueue) -> None:
        queue.took_s = 0.0
        try:
            finding = await self._judge_answer(answer, queue)
            if finding is not None and not await self._is_fair(answer, finding[1], queue):
                self._drop("scorer")
                return
        except NoRoom:
            self._drop("idle")
            return
        except EngineDead:
            queue.deaths += 1
            self._drop("error")
            return
        except Exception as error:
            reason = str(error) if isinstance(error, EngineError) else type(error).__name__
            log.warning("answer %s was not audited: %s", answer.request.id, reason)
            self._drop("error")
            return
        queue.deaths = 0
        if finding is None:
            self._drop(_explain_no_verdict(answer))
            return
        choosing, outcome, detail = finding
        self._conclude(answer, choosing, outcome, detail, queue)

    async def _judge_answer(
        self, answer: FinishedAnswer, queue: AuditQueue
    ) -> tuple[str, AuditOutcome, str] | None:
        """Return how the answer was chosen, the verdict and its reason; None if no verdict is
        possible.

        Raises EngineError.
        """
        if answer.request.constraint is not None:
            return await self._judge_grammar(answer)
        scores = await queue.engine.score(answer.request, answer.token_ids, queue.dtype, queue)
        choosing = ScoringRules.of(answer.request, 0, queue.dtype).choosing
        outcome = judge_margins(scores, queue.tie)
        place, margin = scores.worst
        if outcome is AuditOutcome.VIOLATED:
            cause = (
                "the request's rules exclude it" if margin == float("inf") else f"{margin:.3f} nats"
            )
            num_tokens = len(answer.token_ids)
            return (
                choosing,
                outcome,
                f"token {place} of {num_tokens} is not the target's choice: {cause}",
            )
        if scores.evidence is None and choosing is Choosing.SAMPLED:
            return None  # a worker's alternatives decide none of the tokens
        if scores.evidence is None:
            return choosing, outcome, f"margin {margin:.4f} nats at most"
        key = answer.slice_key
        test = self._tests.setdefault(key, SequentialTest())
        if not test.add(scores.evidence, scores.judged):
            return choosing, outcome, f"{test.log_evidence:.1f} nats of evidence"
        del self._tests[key]
        detail = (
            f"{test.tokens} tokens of {test.answers} answers do not follow the requests' "
            f"distribution ({test.strongest}): {test.log_evidence:.1f} nats of evidence"
        )
        return choosing, AuditOutcome.VIOLATED, detail

    async def _judge_grammar(self, answer: FinishedAnswer) -> tuple[str, AuditOutcome, str] | None:
        constraint = answer.request.constraint
        if constraint is None or not answer.ends_its_grammar:
            return None
        breach = await self._judge.find_breach(constraint, self._decode(answer.text_tokens))
        if breach is None:
            return None
        outcome = AuditOutcome.VIOLATED if breach else AuditOutcome.LOSSLESS
        return "grammar", outcome, breach or f"the answer keeps its {constraint.kind}"

    def _conclude(
        self,
        answer: FinishedAnswer,
        choosing: str,
        outcome: AuditOutcome,
        detail: str,
        queue: AuditQueue,
    ) -> None:
        workload, draft = answer.request.workload, answer.draft
        record = AuditRecord(
            answer.request.id,
            workload,
            choosing,
            draft,
            answer.depth,
            outcome,
            detail,
            time.time(),
            queue.took_s,
            len(answer.token_ids),
            answer.drafter,
            answer.worker,
            queue.name,
        )
        self._recent.append(record)
        self._record(record)
        if outcome is AuditOutcome.VIOLATED and self._panel is not None:
            self._panel.accuse(answer, record, self._write)
        elif outcome is AuditOutcome.VIOLATED:
            self._hold(answer, record)

    def _hold(self, answer: FinishedAnswer, record: AuditRecord) -> None:
        if not answer.depth or not self.holds.knows(answer.draft):
            reason = (
                "no draft was verified in it" if not answer.depth else "several drafts served it"
            )
            log.warning(
                "audit: answer %s is violated (%s); %s", record.request, record.detail, reason
            )
            return
        workload, key = record.workload, answer.request.tenant
        if self.holds.covers(workload, key, answer.draft):
            return
        file = self._write(answer, record)
        hold = AuditHold(workload, record.detail, record.draft, record.at, file, key)
        name = self.holds.add(hold, answer.draft)
        if answer.draft != self.draft:
            log.warning(
                "audit: answer %s is violated (%s); another draft serves now, and speculation is "
                "off for workload %s when draft %s serves again",
                record.request, record.detail, name, answer.draft,
            )  # fmt: skip
            return
        hint = f" To see it again: eaglegate audit replay {file}" if file else ""
        log.warning(
            "speculation is off for workload %s: the audit of answer %s (%s, depth %d, draft %s, "
            "drafter %s) found: %s. It comes back when the draft changes, or with POST "
            "/admin/audit/release for this workload.%s",
            name, record.request, record.choosing, record.depth, record.draft or "-",
            record.drafter, record.detail, hint,
        )  # fmt: skip

    def describe(self) -> Mapping[str, Any]:
        """Describe the holds, the evidence and the last audits for operators."""
        return {
            "share": self.share,
            "waiting": sum(len(queue.waiting) for queue in self.queues),
            "engine_share": round(
                max((queue.share_spent for queue in self.queues), default=0.0), 6
            ),
            "workers": [] if self._panel is None else self._panel.describe(),
            "holds": {name: asdict(hold) for name, hold in self.holds.holds.items()},
            "evidence": {
                name_hold(workload, key) if self._panel is None else draft: {
                    "answers": test.answers,
                    "tokens": test.tokens,
                    "nats": round(test.log_evidence, 3),
                    "alarm_at_nats": round(math.log(test.threshold), 3),
                    "strongest": test.strongest,
                }
                for (draft, workload, key), test in self._tests.items()
                if draft == self.draft or self._panel is not None
            },
            "recent": [record.to_json() for record in reversed(self._recent)],
        }


class AuditedEngine(EngineWrapper):
    """Wrapper of an engine that keeps the tokens of the answers that ``auditor`` selects."""

    def __init__(
        self, engine: Engine, auditor: Auditor, may_keep: Callable[[], bool] = lambda: True
    ) -> None:
        """Wrap ``engine``. ``may_keep`` tells if evidence may hold the tokens of the current
        request."""
        super().__init__(engine)
        self._auditor, self._may_keep = auditor, may_keep

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        if self._auditor.selects(request):
            await self._keep(request, sink)
        else:
            await self._engine.generate(request, sink)

    async def _keep(self, request: EngineRequest, sink: StepSink) -> None:
        draft, collector, may_keep = self._auditor.draft, _KeptTokens(), self._may_keep()
        try:
            await self._engine.generate(request, SinkTap(sink, collector.add))
        except EngineError:
            collector.failed = True
            raise
        finally:
            if not collector.failed:
                request = structs.replace(request, trace_headers={})
                self._auditor.submit(
                    FinishedAnswer(
                        request,
                        tuple(collector.tokens),
                        collector.finish,
                        collector.stopped,
                        collector.depth,
                        draft if draft == self._auditor.draft else MIXED,
                        self._auditor.clock(),
                        may_keep,
                        frozenset(collector.drafters),
                        self._auditor.name_maker(request.id),
                    )
                )


def _explain_no_verdict(answer: FinishedAnswer) -> str:
    if answer.request.constraint is None:
        return "distribution"
    return "unknown" if answer.ends_its_grammar else "rules"


class _KeptTokens:
    """Tokens of an answer, collected step by step."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.depth = 0
        self.drafters: set[Drafter] = set()
        self.finish: FinishReason | None = None
        self.stopped = False
        self.failed = False

    def add(self, step: Step) -> None:
        self.tokens += step.token_ids
        self.finish = step.finish
        self.stopped = step.stop_token is not None
        for decode in step.decode:
            if decode.drafted:
                self.depth = max(self.depth, decode.drafted)
                self.drafters.add(decode.drafter)
