"""Crashes that count against a request, and the end of an answer that several engines make."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from eaglegate.engine.errors import EngineDead, EngineOverloaded, RequestQuarantined
from eaglegate.engine.scripted import ScriptedEngine, steps
from eaglegate.engine.steps import read_steps
from eaglegate.engine.supervision.continuation import Continuation
from eaglegate.engine.supervision.policy import RecoveryOutcome, SupervisionTimeouts
from eaglegate.engine.supervision.recovery import FailureKind, InFlightRequest, RequestRecovery
from eaglegate.engine.types import EngineRequest, Step
from eaglegate.text.events import FinishReason
from tests.engine.supervision.mortal import (
    Cradle,
    Mortal,
    Notes,
    ask,
    collect,
    following,
    tokens_of,
)


class Silent(Mortal):
    """An engine whose first life makes every token and dies before it says why the answer ends."""

    async def _play(self, request: EngineRequest):
        async with aclosing(super()._play(request)) as made:
            async for step in made:
                yield structs.replace(step, finish=None)
        self.kill()
        raise EngineDead("killed")


class Brief(Mortal):
    """An engine whose answers end after three tokens."""

    def play(self, request: EngineRequest):
        yield from steps(following(request)[:3], self.cradle.cuts, FinishReason.STOP)


def cradle_of(kind: type[Mortal]) -> Cradle:
    cradle = Cradle()

    def make() -> Mortal:
        cradle.lives.append((Mortal if cradle.lives else kind)(cradle, len(cradle.lives)))
        return cradle.lives[-1]

    cradle.make = make
    return cradle


async def test_an_answer_ends_once_and_is_not_submitted_again(supervise):
    cradle = cradle_of(Brief)
    engine, _ = await supervise(cradle)
    for _ in range(2):
        got = await collect(engine, ask())
        assert [step.finish for step in got[:-1]] == [None] * (len(got) - 1)
        assert got[-1].finish is FinishReason.STOP
        assert len(tokens_of(got)) == 3
    assert len(cradle.lives[0].requests) == 2


async def test_when_only_the_end_was_lost_no_engine_runs_it_again(supervise):
    cradle = cradle_of(Silent)
    engine, _ = await supervise(cradle)
    got = await collect(engine, ask())
    assert tokens_of(got) == following(ask())
    assert got[-1] == Step((), finish=FinishReason.LENGTH)
    assert not any(life.requests for life in cradle.lives[1:])


@pytest.mark.parametrize("made", [1, 2])
async def test_a_step_takes_the_blame_for_earlier_crashes_away(supervise, made):
    """A request crashes before a step, then makes some; its next crash before a step is a first
    one."""
    first_steps = {0: 0, 1: made, 2: 0}
    cradle = Cradle(doom=lambda life, _, step: first_steps.get(life) == step)
    engine, _ = await supervise(cradle)
    assert tokens_of(await collect(engine, ask())) == following(ask())


async def test_a_request_that_crashes_two_engines_alone_is_named_and_counted(supervise, caplog):
    cradle = Cradle(doom=lambda life, request, step: request.id == "poison")
    engine, notes = await supervise(cradle)
    with pytest.raises(RequestQuarantined, match="died 2 times in a row while it ran request pois"):
        await collect(engine, ask("poison"))
    assert notes.outcomes == {RecoveryOutcome.RERUN: 1, RecoveryOutcome.QUARANTINED: 1}
    assert "request poison crashes engines" in caplog.text


class Place:
    """A submission to a scripted engine, of which a test says what its errors mean."""

    def __init__(self, script: list[object], kind: FailureKind) -> None:
        self.engine = ScriptedEngine(script=script)
        self.started = self.delivered = False
        self._kind = kind

    def record_start(self) -> None:
        self.started = True

    def record_step(self, step: Step) -> None:
        pass

    def record_delivery(self) -> None:
        self.delivered = True

    async def classify(self, error: Exception) -> FailureKind:
        return self._kind


@dataclass
class Places:
    """Gives one place after the other; remembers how long the request had waited for each."""

    left: list[Place]
    waiting_since: list[float | None] = field(default_factory=list)
    accounts: bool = True
    is_closed: bool = False

    @asynccontextmanager
    async def submit(self, inflight: InFlightRequest):
        await asyncio.sleep(0.005)
        self.waiting_since.append(inflight.waiting_since)
        yield self.left.pop(0)

    def reset_failures(self) -> None:
        pass

    def blame_draft(self, submission: Place, depth: int | None) -> None:
        pass


async def test_a_request_waits_from_its_first_loss_until_its_next_step():
    full, dead = EngineOverloaded("full"), EngineDead("dead")
    places = Places(
        [
            Place([full], FailureKind.NOT_RUN),
            Place([dead], FailureKind.REQUEST_LOST),
            Place([Step((7,)), dead], FailureKind.REQUEST_LOST),
            Place([Step((8,), finish=FinishReason.STOP)], FailureKind.NOT_RUN),
        ]
    )
    recovery = RequestRecovery(places, SupervisionTimeouts(), Notes())
    assert tokens_of([step async for step in read_steps(recovery.generate, ask())]) == [7, 8]
    first, second, third, fourth = places.waiting_since
    assert first is None
    assert second is not None
    assert third == second
    assert fourth > third


def inflight() -> InFlightRequest:
    return InFlightRequest(ask(), Continuation(ask()))


@pytest.mark.parametrize("kind", [FailureKind.HUNG, FailureKind.REQUEST_LOST])
def test_hangs_and_lost_connections_make_no_request_poison(kind):
    request = inflight()
    for _ in range(99):
        request.record_failure(kind, started=False)
    assert not request.is_poison(SupervisionTimeouts())
    assert request.is_exhausted(SupervisionTimeouts())


def test_a_request_survives_so_many_losses_in_a_row_and_no_more():
    request, timeouts = inflight(), SupervisionTimeouts(continuations=3)
    for _ in range(3):
        request.record_failure(FailureKind.REQUEST_LOST, started=True)
        assert not request.is_exhausted(timeouts)
    request.record_failure(FailureKind.REQUEST_LOST, started=True)
    assert request.is_exhausted(timeouts)


def test_signals_are_counted_apart_and_end_no_request_early():
    request, timeouts = inflight(), SupervisionTimeouts()
    for _ in range(timeouts.kills):
        request.record_failure(FailureKind.KILLED, started=False)
    assert not request.is_poison(timeouts)
    assert (request.losses, request.is_exhausted(timeouts)) == (0, False)
    request.record_failure(FailureKind.KILLED, started=False)
    assert request.is_poison(timeouts), "the first one met it by chance"


def test_a_request_with_output_is_one_whose_tokens_were_delivered():
    request = inflight()
    assert request.has_output is False
    request.continuation.next_request()
    request.continuation.take(Step((7,)))
    assert request.has_output is True


def test_refusals_are_disproved_once():
    blamed: list[str] = []
    request = inflight()
    request.refusals += [lambda: blamed.append("a"), lambda: blamed.append("b")]
    request.disprove_refusals()
    request.disprove_refusals()
    assert blamed == ["a", "b"]


@pytest.mark.parametrize(("ran", "poison"), [(False, False), (True, True), (None, True)])
def test_only_a_request_that_ran_when_engines_died_is_suspected(ran, poison):
    """Losses that have nothing to do with a request find it in a queue, again and again."""
    inflight = InFlightRequest(ask(), Continuation(ask()))
    for _ in range(3):
        inflight.record_failure(FailureKind.DIED, started=False, ran=ran)
    assert inflight.is_poison(SupervisionTimeouts()) is poison
    assert (inflight.strikes > 0) is poison
    assert inflight.losses == 3
