"""Prompts inside the engine: how many tokens a request finds ahead of its own, never how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from eaglegate.engine.errors import EngineFailed
from eaglegate.engine.scripted import ScriptedEngine
from eaglegate.engine.types import EngineRequest, StepSink, find_class
from eaglegate.server.access.caller import Requester
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.prompt_turns import PromptTurn, PromptTurns
from tests.server.access.test_admission import settle
from tests.server.conftest import Answer, Lab, make_key, wait_until

STEP, PROMPT = 2048, 1500
BOUND = 2 * STEP + PROMPT
"""The last prompt may exceed the two steps."""
CLASSES = {"bulk": Priority.LOW, "peer": Priority.LOW, "chat": Priority.HIGH}


@dataclass
class ReadingEngine(ScriptedEngine):
    """Reads ``STEP`` prompt tokens for each call of ``read``, in the order of their arrival."""

    unread: dict[str, int] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)
    """Unread prompt tokens that each request met."""
    error: Exception | None = None
    _ends: dict[str, asyncio.Event] = field(default_factory=dict)

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        self.ahead[request.id] = sum(self.unread.values())
        self.unread[request.id] = len(request.prompt)
        self._ends[request.id] = end = asyncio.Event()
        try:
            await end.wait()
        finally:
            self.unread.pop(request.id, None)
        if self.error is not None:
            raise self.error
        await super().generate(request, sink)

    def read(self) -> None:
        left = STEP
        for name in list(self.unread):
            read = min(left, self.unread[name])
            self.unread[name] -= read
            left -= read
            if self.unread[name]:
                break
            del self.unread[name]
            self._ends[name].set()

    async def read_until(self, *tasks: asyncio.Task[Answer]) -> None:
        while not all(task.done() for task in tasks):
            self.read()
            await settle()


@dataclass
class Room:
    """A gateway on a reading engine, with keys of three classes."""

    lab: Lab = field(default_factory=lambda: Lab(engine=ReadingEngine()))

    def __post_init__(self) -> None:
        self.engine: ReadingEngine = self.lab.engine
        pipeline = self.lab.path()
        info = replace(pipeline.info, max_model_len=8 * STEP)
        self.prompts = PromptTurns(lambda: STEP)
        turns = {"prompts": self.prompts, "scored_prompts": PromptTurns(lambda: STEP)}
        self.lab.admit(*(make_key(name, priority=level) for name, level in CLASSES.items()))
        self.lab.gateway.open(replace(pipeline, info=info, **turns))
        self.lab.says("x")

    def ask(
        self, key: str, prompts: int = 1, tokens: int = PROMPT, **fields: int
    ) -> asyncio.Task[Answer]:
        prompt = [" a" * tokens] * prompts
        return asyncio.create_task(self.lab.complete(key, prompt=prompt, max_tokens=2, **fields))

    async def wait_until_admitted(self, sequences: int) -> None:
        """Large bodies are parsed and tokenized in threads."""
        await wait_until(lambda: self.lab.gateway.require().admission.running >= sequences)
        await settle()

    async def count_ahead(self, task: asyncio.Task[Answer]) -> int:
        await self.wait_until_admitted(self.lab.gateway.require().admission.running + 1)
        await self.engine.read_until(task)
        assert task.result().status == 200
        return self.engine.ahead[f"{task.result().json['id']}-0"]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.mark.parametrize(("requests", "prompts"), [(1, 64), (40, 1)])
@pytest.mark.parametrize("key", ["chat", "peer"])
async def test_others_find_two_steps_of_prompts_ahead(room, requests, prompts, key):
    """docs/operations.md, "Admission": a flood of prompts, by another key of any lower or equal
    class."""
    flood = [room.ask("bulk", prompts) for _ in range(requests)]
    await room.wait_until_admitted(requests * prompts)
    for tokens in (10, PROMPT):
        assert await room.count_ahead(room.ask(key, tokens=tokens)) <= BOUND
    assert not all(task.done() for task in flood)
    await room.engine.read_until(*flood)
    assert {task.result().status for task in flood} == {200}


async def test_the_engine_has_prompts_for_the_next_step(room):
    """A smaller bound would leave the engine idle between steps."""
    flood = room.ask("bulk", 40)
    await room.wait_until_admitted(40)
    steps = 0
    while len(room.engine.ahead) < 40:
        assert sum(room.engine.unread.values()) > STEP
        room.engine.read()
        steps += 1
        for _ in range(10):
            await settle()
    assert steps <= 40 * PROMPT / STEP
    await room.engine.read_until(flood)


async def test_prompts_longer_than_the_bound_are_read(room):
    await room.count_ahead(room.ask("chat"))
    flood = room.ask("bulk", 3, 7 * STEP)
    await room.engine.read_until(flood)
    assert flood.result().status == 200


@pytest.mark.parametrize("failure", ["error", "cancelled"])
async def test_requests_that_end_without_a_step_leave_no_tokens(room, failure):
    flood = room.ask("bulk", 8)
    await room.wait_until_admitted(8)
    if failure == "error":
        room.engine.error = EngineFailed("no")
        await room.engine.read_until(flood)
        room.engine.error = None
    else:
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)
    await settle()
    assert not room.engine.unread
    assert await room.count_ahead(room.ask("peer", tokens=STEP)) == 0


async def test_the_bound_follows_the_engine():
    """Workers join and leave."""
    tokens = 100
    turns = PromptTurns(lambda: tokens)
    async with turns.turn(Requester("a"), 200):
        waiting = begin(turns, Requester("a"), 150)
        await settle()
        assert not waiting.done()
        tokens = 1000
        async with turns.turn(Requester("a"), 10):
            await settle()
            assert waiting.done()


def begin(turns: PromptTurns, key: Requester, tokens: int) -> asyncio.Task[PromptTurn]:
    return asyncio.ensure_future(turns.turn(key, tokens).__aenter__())


@pytest.mark.parametrize("behind", Priority)
@pytest.mark.parametrize("ahead", Priority)
async def test_a_class_passes_unread_prompts_of_lower_ones_only(ahead, behind):
    """The engine may have no seat or no memory for them."""
    turns = PromptTurns(lambda: 50)
    async with turns.turn(Requester("a", ahead), 100):
        waiting = begin(turns, Requester("b", behind), 1)
        await settle()
        assert waiting.done() is (behind < ahead)
    (await waiting).end()
    assert turns.num_unread == 0


@pytest.mark.parametrize("begins", [False, True])
async def test_cancelled_turns_take_no_room(begins):
    """Also one whose turn comes before its task learns of the cancellation."""
    turns = PromptTurns(lambda: 50)
    first = await begin(turns, Requester("a"), 100)
    waiting = begin(turns, Requester("a"), 100)
    await settle()
    waiting.cancel()
    if not begins:
        await settle()
    first.end()
    await settle()
    assert waiting.cancelled()
    assert turns.num_unread == 0


@pytest.mark.parametrize(("weight", "tokens"), [(3, 6), (1, 2)])
async def test_prompt_tokens_are_shared_by_weight(weight, tokens):
    """Twelve prompts of each key: three for one, since they count as one or are a third."""
    turns, order = PromptTurns(lambda: 1), []

    async def read(key: Requester, size: int) -> None:
        async with turns.turn(key, size):
            order.append(key.name)
            await settle()

    light, heavy = Requester("light"), Requester("heavy", weight=weight)
    reads = [read(light, 6) for _ in range(12)] + [read(heavy, tokens) for _ in range(12)]
    await asyncio.gather(*reads)
    assert order[:12].count("heavy") == pytest.approx(9, abs=1)
    assert len(order) == 24


@pytest.mark.parametrize(
    ("key", "given", "order"),
    [("bulk", -9, 1), ("bulk", 1 << 60, 1), ("chat", -9, -1), ("chat", 1 << 60, -1), (None, -9, 0)],
)
async def test_a_client_s_priority_stays_within_its_class(room, key, given, order):
    """``--scheduling-policy priority``: nobody goes ahead of another key by a number."""
    if key is None:
        room.lab.admit()
    task = asyncio.create_task(room.lab.complete(key, prompt=[5], priority=given))
    await room.engine.read_until(task)
    assert task.result().status == 200
    (request,) = room.engine.requests
    assert find_class(request.priority) == order
    default = order * (1 << 16)
    assert (request.priority >= default) if key else (request.priority == -9)


async def test_answers_that_come_whole_hold_up_no_others(room):
    """A worker streams no answer with the prompt's log probabilities: its first step is the last.
    A long answer would otherwise stop every other request of its class and the classes below."""
    scored = room.ask("chat", 8, prompt_logprobs=0)
    await room.wait_until_admitted(8)
    assert sum(room.engine.unread.values()) <= BOUND
    others = [room.ask("chat"), room.ask("bulk")]
    await room.wait_until_admitted(10)
    assert len(room.engine.ahead) == 5
    await room.engine.read_until(scored, *others)
    assert {task.result().status for task in (scored, *others)} == {200}


async def test_prompts_that_no_engine_reads_make_room():
    """A worker that hangs keeps its own requests waiting, and nobody else's."""
    alarms: list[asyncio.TimerHandle] = []
    limits: list[float] = []

    def later(seconds: float, end: Callable[[], None]) -> asyncio.TimerHandle:
        limits.append(seconds)
        alarms.append(asyncio.get_running_loop().call_later(seconds - 10, end))
        return alarms[-1]

    turns = PromptTurns(lambda: 50, later=later)
    async with turns.turn(Requester("a"), 100):
        waiting = begin(turns, Requester("b"), 100)
        second = await asyncio.wait_for(waiting, 5)
        second.end()
    assert alarms[1].cancelled()
    assert turns.num_unread == 0, "an ended turn is subtracted once"
    assert limits == [10, 10]
