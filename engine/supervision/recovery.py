"""Request recovery: in-flight requests survive the loss of their engine.

An *engine provider* has engines, one after another (``supervisor.py``) or several at a time
(``engine/fleet``). ``RequestRecovery`` submits a request to one of them, continues it on the next
engine when one is lost (``continuation.py``), and finds the request that crashes engines
(``PoisonIsolation`` in ``pool.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol

from msgspec import structs

from eaglegate.engine.base import Engine
from eaglegate.engine.errors import (
    EngineDead,
    EngineFailed,
    EngineOverloaded,
    RequestQuarantined,
    RequestRejected,
)
from eaglegate.engine.speculation.accounts.accounting import sum_steps
from eaglegate.engine.steps import put
from eaglegate.engine.supervision.continuation import Continuation, ReplayDiverged
from eaglegate.engine.supervision.draft_blame import DeathInquiry
from eaglegate.engine.supervision.policy import (
    RecoveryObserver,
    RecoveryOutcome,
    SupervisionTimeouts,
    now,
)
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineRequest, Step, StepSink
from eaglegate.text.events import FinishReason

log = logging.getLogger(__name__)

RecoverableError = EngineDead | EngineOverloaded | EngineFailed | RequestRejected
"""Errors after which another engine may serve the request."""


class FailureKind(StrEnum):
    """Kind of failure of a submission."""

    NOT_RUN = "not_run"
    """The engine did not run the request; nothing was lost."""
    REQUEST_LOST = "request_lost"
    """The request was lost; the engine keeps running."""
    DIED = "died"
    """The engine died, possibly because of this request."""
    HUNG = "hung"
    """The engine stalled while it was running other requests as well."""
    KILLED = "killed"
    """A signal from outside ended or stopped the engine. No request is to blame unless this happens
    repeatedly."""


@dataclass(slots=True)
class StartLosses:
    """Engines lost in a row before the request had made a step on them, so that it may be the
    cause. From the first one on the request waits until it can start alone
    (``PoisonIsolation``), so no other request explains the later ones."""

    count: int = 0
    crashes: int = 0
    """Losses in which the engine died by itself."""
    lone_crashes: int = 0
    """Crashes after the first one."""
    lone_kills: int = 0
    """Signals from outside after the first loss."""

    def record(self, kind: FailureKind) -> None:
        if kind is FailureKind.DIED:
            self.lone_crashes += self.crashes > 0
            self.crashes += 1
        elif kind is FailureKind.KILLED:
            self.lone_kills += self.count > 0
        self.count += 1


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """A request, its continuation, and the engine failures it has met."""

    request: EngineRequest
    continuation: Continuation
    submissions: int = 0
    """Number of engines that the request was submitted to."""
    losses: int = 0
    """Engines lost in total, without a signal from outside."""
    losses_without_token: int = 0
    """Those of them in a row, since the last new token."""
    start_losses: StartLosses = field(default_factory=StartLosses)
    failures: int = 0
    """Engines that failed on the request and kept running."""
    avoided: set[object] = field(default_factory=set)
    """Engines to avoid if there is another one."""
    refusals: list[Callable[[], None]] = field(default_factory=list)
    """One callback for each engine that refused the request, called if another engine runs it."""
    waiting_since: float | None = None
    """Time at which the request lost its engine or found no capacity; None once it has made a step.
    """
    finished: bool = False
    suspected: list[tuple[Submission, int | None]] = field(default_factory=list)
    """Submissions with drafts that ended with their engine's death, and the depths requested."""
    inquiries: list[DeathInquiry] = field(default_factory=list)
    """Inquiries into deaths of engines in which the request is a suspect, since its last step."""

    def take(self, step: Step, submission: Submission) -> Step | None:
        """Account for a step of the engine, and return the new part of it; None if nothing is
        new."""
        if not submission.started:
            self.reset_strikes()
            submission.record_start()
        submission.record_step(step)
        output = self.continuation.take(step)
        if output is not None:
            self.losses_without_token = 0
            if not submission.delivered and output.token_ids:
                submission.record_delivery()
        return output

    def reset_strikes(self) -> None:
        """Forget the strikes, once the request has made a step on its current engine."""
        self.start_losses = StartLosses()
        self.waiting_since = None
        self.end_inquiries()

    def join_inquiry(self, inquiry: DeathInquiry) -> None:
        inquiry.add_suspect(self)
        self.inquiries.append(inquiry)

    def end_inquiries(self, *, guilty: bool = False) -> None:
        """End the request's part in all inquiries. ``guilty`` means that it kills engines without
        drafts."""
        inquiries, self.inquiries = self.inquiries, []
        for inquiry in inquiries:
            if guilty:
                inquiry.convict()
            else:
                inquiry.clear(self)

    def pop_proven(self) -> list[tuple[Submission, int | None]]:
        """Remove and return the suspected submissions that a run without drafts has proven guilty.

        A first step proves deaths before the first step; the whole answer proves later ones.
        """
        pairs = [pair for pair in self.suspected if self.finished or not pair[0].started]
        self.suspected = [pair for pair in self.suspected if pair not in pairs]
        return pairs

    def disprove_refusals(self) -> None:
        """Blame the engines that refused the request, because another engine runs it."""
        refusals, self.refusals = self.refusals, []
        for blame in refusals:
            blame()

    def record_failure(self, kind: FailureKind, *, started: bool, ran: bool | None = None) -> None:
        """Record a failed submission.

        ``started`` means that it failed after a step of this request. ``ran`` is True if the engine
        was running the request, None if unknown. A request that waited in its engine's queue is not
        suspected.
        """
        if kind is not FailureKind.KILLED:
            self.losses_without_token += 1
            self.losses += 1
        if started or ran is False or kind is FailureKind.REQUEST_LOST:
            return
        self.start_losses.record(kind)

    @property
    def strikes(self) -> int:
        """Engines lost in a row without a step of this request since it was submitted."""
        return self.start_losses.count

    @property
    def suspects_draft(self) -> bool:
        """True if the request must run without drafts: it may have killed an engine before its
        first step, or two engines have died under it.

        Only a request that also kills an engine without drafts counts as poison.
        """
        return self.start_losses.crashes > 0 or self.losses > 1

    def is_poison(self, timeouts: SupervisionTimeouts) -> bool:
        """Return True if the request crashes engines, because no other request can be the cause."""
        losses = self.start_losses
        return losses.lone_crashes > 0 or losses.lone_kills >= timeouts.kills

    def is_exhausted(self, timeouts: SupervisionTimeouts) -> bool:
        too_many_in_a_row = self.losses_without_token > timeouts.continuations
        return too_many_in_a_row or self.losses > timeouts.losses

    @property
    def has_output(self) -> bool:
        """True if part of the answer was delivered."""
        return self.continuation.outcome is not RecoveryOutcome.RERUN


class _DeliverySink:
    """A request's sink for one submission, which passes on the new part of each step."""

    __slots__ = ("_inflight", "_push", "_start", "_submission", "drain", "is_open")

    def __init__(
        self,
        inflight: InFlightRequest,
        submission: Submission,
        sink: StepSink,
        start: Callable[[], None],
    ) -> None:
        """Wrap ``sink``. ``start`` is called before the first step."""
        self.is_open, self.drain = sink.is_open, sink.drain
        self._push, self._start = sink.push, start
        self._inflight, self._submission = inflight, submission

    def push(self, step: Step) -> None:
        if not self._submission.started:
            self._start()
        output = self._inflight.take(step, self._submission)
        if output is not None:
            self._push(output)


class Submission(Protocol):
    """One submission of a request to one engine."""

    @property
    def engine(self) -> Engine: ...

    @property
    def inquiry(self) -> DeathInquiry:
        """The inquiry into the engine's death, which several submissions share."""
        ...

    started: bool
    """True if the request has made a step."""
    delivered: bool
    """True if the client has received a token from this engine."""

    def record_start(self) -> None:
        """Record the first step of the request. Called before ``record_step``."""
        ...

    def record_step(self, step: Step, /) -> None:
        """Record a step of the engine for this request."""
        ...

    def record_delivery(self) -> None:
        """Record that the client receives its first token from this engine."""
        ...

    async def classify(self, error: RecoverableError, /) -> FailureKind:
        """Report the error to the engine's supervisor, and return its meaning for the request.

        Raises ``error`` if no other engine would do better.
        """
        ...


class EngineProvider(Protocol):
    """Source of engines to which requests are submitted."""

    @property
    def accounts(self) -> bool:
        """True if the engines report their decode steps."""
        ...

    @property
    def is_closed(self) -> bool:
        """True if no engine will become available any more."""
        ...

    def reset_failures(self) -> None:
        """Forget the last losses. One request caused them, and it is refused from now on."""
        ...

    def blame_draft(self, submission: Submission, depth: int | None) -> None:
        """Record that drafts killed the engine of ``submission``. ``depth`` is the depth
        requested."""
        ...

    def submit(self, inflight: InFlightRequest) -> AbstractAsyncContextManager[Submission]:
        """Wait for an engine and hold it for the request. Raises EngineDead."""
        ...


@dataclass(eq=False)
class RequestRecovery:
    """Implements ``generate`` over a provider's engines."""

    provider: EngineProvider
    timeouts: SupervisionTimeouts
    observer: RecoveryObserver
    replayed: Totals = field(default_factory=Totals)
    """Steps that were generated a second time, whose tokens had been delivered before."""

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        inflight = InFlightRequest(request, Continuation(request, accounts=self.provider.accounts))
        try:
            await self._generate(inflight, sink)
        finally:
            inflight.end_inquiries()

    async def _generate(self, inflight: InFlightRequest, sink: StepSink) -> None:
        """Submit the request to one engine after another, until one finishes it."""
        continuation = inflight.continuation
        while not inflight.finished:
            # The engine died between the last token and the end of its stream.
            if continuation.is_complete:
                await put(Step((), finish=FinishReason.LENGTH), sink)
                return
            async with self.provider.submit(inflight) as submission:
                inflight.submissions += 1
                request = continuation.next_request()  # the whole request, or the rest of it
                # Without drafts, deaths that drafts caused stop, and a request that still kills
                # engines is poison. With drafts, both would look alike.
                if inflight.suspects_draft:
                    request = structs.replace(request, depth=0)
                judge = partial(self._judge_drafts, inflight, request)
                delivery = _DeliverySink(inflight, submission, sink, judge)
                try:
                    await submission.engine.generate(request, delivery)
                    inflight.finished = True
                    # A sink judges before the first step, which clears only the deaths before a
                    # first step. The whole answer clears the rest.
                    judge()
                except (EngineDead, EngineOverloaded, EngineFailed, RequestRejected) as error:
                    kind = await submission.classify(error)
                    ran = error.ran if isinstance(error, EngineDead) else None
                    # A request that waited in the engine's queue cannot have killed it.
                    may_be_cause = submission.started or ran is not False
                    if kind is FailureKind.DIED and may_be_cause and request.depth != 0:
                        inflight.suspected.append((submission, request.depth))
                    self._handle_failure(inflight, submission, kind, ran)
                except ReplayDiverged:
                    # The new engine wrote other tokens than the client has, so its text would
                    # not continue theirs.
                    raise EngineDead(
                        "The engine died, and the answer could not be continued."
                    ) from None
                finally:
                    # Also after a cancellation, because the engine did this work in any case.
                    if skipped_steps := continuation.pop_skipped():
                        self.replayed += sum_steps(skipped_steps, requests=0)

    def _judge_drafts(self, inflight: InFlightRequest, request: EngineRequest) -> None:
        """Blame the drafts for engine deaths if the request runs without drafts."""
        if inflight.suspected and request.depth == 0:
            for submission, depth in inflight.pop_proven():
                self.provider.blame_draft(submission, depth)

    def _handle_failure(
        self,
        inflight: InFlightRequest,
        submission: Submission,
        kind: FailureKind,
        ran: bool | None,
    ) -> None:
        """Record a failed submission. Raises EngineError if the request must not continue."""
        if inflight.waiting_since is None:
            inflight.waiting_since = now()
        if kind is FailureKind.NOT_RUN:
            return
        inflight.record_failure(kind, started=submission.started, ran=ran)
        if kind is FailureKind.DIED and not submission.started and ran is not False:
            inflight.join_inquiry(submission.inquiry)
        if inflight.is_poison(self.timeouts):
            if inflight.start_losses.lone_crashes:  # crashes after the first one are without drafts
                inflight.end_inquiries(guilty=True)
            self.observer.record_interruption(RecoveryOutcome.QUARANTINED, inflight.request.id)
            self.provider.reset_failures()
            log.error("request %s crashes engines; it is rejected", inflight.request.id)
            raise RequestQuarantined(
                f"The engine died {inflight.strikes} times in a row while it ran request "
                f"{inflight.request.id}; it will not be run again."
            )
        if inflight.is_exhausted(self.timeouts) or self.provider.is_closed:
            self.observer.record_interruption(RecoveryOutcome.LOST, inflight.request.id)
            raise EngineDead("The engine died, and the answer could not be continued.")
        self.observer.record_interruption(inflight.continuation.outcome, inflight.request.id)
