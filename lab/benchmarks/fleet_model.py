"""A simulated fleet: agents' sessions in, workers with prefix caches, the gateway's own balancing.

Only the workers are modelled. Which of them gets a request is decided by ``engine.fleet.routing``
itself, given real token ids and told of every step, as the gateway does it.

A worker makes steps as vLLM's scheduler does: every running request decodes, and what is left of
the step's token budget prefills those that wait, first come, first served. A step takes

    step_s + prefill tokens x prefill_s + decoding requests x decode_s

and a decoding request gets one token and, with chance ``acceptance`` each, up to K drafted ones.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle

from eaglegate.engine.fleet.routing import Assignment, LoadBalancer, PrefixMemory, hash_blocks
from eaglegate.engine.fleet.types import RoutingSettings
from eaglegate.engine.types import EngineRequest, Sampling


@dataclass(frozen=True, slots=True)
class Machine:
    """One worker: about an 8B model on one large GPU."""

    step_s: float = 0.008
    prefill_s: float = 1 / 20_000
    decode_s: float = 0.00015
    budget: int = 8192
    """Tokens one step may work on."""
    max_running: int = 128
    cache_tokens: int = 400_000
    acceptance: float = 0.7
    """Chance of each draft token, given the one before."""
    depth: int = 3


@dataclass(frozen=True, slots=True)
class Trace:
    """Agents: a few shared system prompts, sessions that grow turn by turn."""

    sessions_per_s: float = 1.0
    seconds: float = 300.0
    apps: int = 12
    """Different system prompts; the n-th is used 1/n as often as the first."""
    system_tokens: tuple[int, int] = (1000, 6000)
    turns: float = 10.0
    """Mean; geometric."""
    new_tokens: float = 500.0
    """Median of what a turn adds (a question, a tool's result); log-normal."""
    answer_tokens: float = 150.0
    """Median of an answer; log-normal."""
    spread: float = 0.8
    pause_s: float = 4.0
    """Mean time from an answer to the next turn: tools at work; exponential."""
    longest: int = 30_000


@dataclass(slots=True)
class Session:
    name: str
    prompt: tuple[int, ...]
    turns: int
    dice: random.Random
    """Random numbers of its own, so that no policy changes its requests."""


@dataclass(slots=True)
class Job:
    """One turn of a session in a worker."""

    session: Session
    request: EngineRequest
    arrived: float
    answer: int
    blocks: Sequence[bytes]
    gateway: Gateway
    assignment: Assignment | None
    prefill: int = 0
    made: int = 0


@dataclass
class Worker:
    machine: Machine
    cache: PrefixMemory
    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    busy: bool = False
    worked_s: float = 0.0


CACHE_BLOCK = 64


class Simulation:
    """Deterministic by ``seed``; all policies see the same sessions.

    With several gateways each request comes to any of them: none sees what the others do.
    """

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        workers: int,
        policy: str,
        seed: int,
        gateways: int = 1,
    ) -> None:
        self.trace, self.machine = trace, machine
        self.door = random.Random(seed)
        self.seed = seed
        self.names = [f"worker-{at}" for at in range(workers)]
        blocks = machine.cache_tokens // CACHE_BLOCK
        self.workers = {name: Worker(machine, PrefixMemory(blocks)) for name in self.names}
        self.gateways = [Gateway(policy, self.names, machine) for _ in range(gateways)]
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.count = 0
        self.prompt_tokens = self.cached_tokens = 0
        self.ttft: list[float] = []
        self.ended_at = 0.0

    def run(self) -> None:
        trace, dice = self.trace, random.Random(self.seed)
        apps = [words(dice, dice.randint(*trace.system_tokens)) for _ in range(trace.apps)]
        weights = [1 / (at + 1) for at in range(trace.apps)]
        at, number = 0.0, 0
        while (at := at + dice.expovariate(trace.sessions_per_s)) < trace.seconds:
            (app,) = dice.choices(apps, weights)
            own = random.Random(f"{self.seed} {number}")
            turns = 1 + int(own.expovariate(1 / (trace.turns - 1)))
            session = Session(f"session-{number}", app, turns, own)
            self._at(at, partial(self._turn, session))
            number += 1
        while self.events:
            now, _, happen = heapq.heappop(self.events)
            happen(now)
            self.ended_at = now

    def _at(self, when: float, happen: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, happen))

    def _size(self, dice: random.Random, median: float) -> int:
        return max(1, int(median * dice.lognormvariate(0, self.trace.spread)))

    def _turn(self, session: Session, now: float) -> None:
        """The next question of a session arrives, and goes where the policy says."""
        session.prompt += words(session.dice, self._size(session.dice, self.trace.new_tokens))
        answer = self._size(session.dice, self.trace.answer_tokens)
        request = EngineRequest(
            f"{session.name}-{session.turns}",
            session.prompt,
            Sampling(max_tokens=4 * answer),
            affinity=session.name,
        )
        blocks = hash_blocks(session.prompt, CACHE_BLOCK, len(session.prompt))
        gateway = self.door.choice(self.gateways)
        name, assignment = gateway.place(request)
        job = Job(session, request, now, answer, blocks, gateway, assignment)
        worker = self.workers[name]
        worker.waiting.append(job)
        if not worker.busy:
            self._step(worker, now)

    def _step(self, worker: Worker, now: float) -> None:
        """One step of the worker's engine, and the next one when it is over."""
        machine = self.machine
        decoding = [job for job in worker.running if not job.prefill]
        prefilled, done = self._prefill(worker, machine.budget - len(decoding))
        took = machine.step_s + prefilled * machine.prefill_s + len(decoding) * machine.decode_s
        worker.worked_s += took
        worker.busy = True
        self._at(now + took, partial(self._made, worker, [*decoding, *done]))

    def _prefill(self, worker: Worker, budget: int) -> tuple[int, list[Job]]:
        """Tokens prefilled in one step, and the requests whose prompts that completes."""
        used, done = 0, []
        while worker.waiting and len(worker.running) < self.machine.max_running:
            if sum(job.prefill for job in worker.running) >= budget:
                break
            worker.running.append(self._admitted(worker, worker.waiting.popleft()))
        for job in worker.running:
            if job.prefill and used < budget:
                part = min(job.prefill, budget - used)
                job.prefill -= part
                used += part
                if not job.prefill:
                    done.append(job)
        return used, done

    def _admitted(self, worker: Worker, job: Job) -> Job:
        """Admit a job and find its cached blocks; the last token of a prompt is always computed."""
        prompt = len(job.request.prompt)
        cached = min(worker.cache.count_known(job.blocks) * CACHE_BLOCK, prompt - 1)
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        job.prefill = prompt - cached
        worker.cache.add(job.blocks)
        return job

    def _made(self, worker: Worker, jobs: list[Job], now: float) -> None:
        for job in jobs:
            first = job.made == 0
            tokens = 1 if first else self._accepted(job.session.dice)
            if first:
                self.ttft.append(now - job.arrived)
            job.made += tokens
            if job.assignment is not None:
                job.assignment.charge.record_tokens(tokens)
            if job.made >= job.answer:
                worker.running.remove(job)
                self._ended(worker, job, now)
        if worker.running or worker.waiting:
            self._step(worker, now)
        else:
            worker.busy = False

    def _accepted(self, dice: random.Random) -> int:
        tokens = 1
        while tokens <= self.machine.depth and dice.random() < self.machine.acceptance:
            tokens += 1
        return tokens

    def _ended(self, worker: Worker, job: Job, now: float) -> None:
        """The answer becomes part of the session's next prompt, and of the worker's cache."""
        session = job.session
        job.gateway.ended(job.assignment, job.made)
        session.prompt += words(session.dice, job.made)
        worker.cache.add(hash_blocks(session.prompt, CACHE_BLOCK, len(session.prompt)))
        session.turns -= 1
        if session.turns > 0 and len(session.prompt) < self.trace.longest:
            pause = session.dice.expovariate(1 / self.trace.pause_s)
            self._at(now + pause, partial(self._turn, session))


def words(dice: random.Random, number: int) -> tuple[int, ...]:
    """Token ids nobody else has."""
    return tuple(array("H", dice.randbytes(2 * number)))


POLICIES: dict[str, str] = {
    "round robin": "each worker in turn",
    "least outstanding": "the fewest tokens before it",
    "hash": "leading blocks by hash, bounded load; nothing remembered",
    "affinity": "the gateway's default: where the prompt is known, bounded load",
    "session": "the same, with sessions named by their clients",
}


class Gateway:
    """One gateway's balancer, with what the policy does without taken from it."""

    def __init__(self, policy: str, names: list[str], machine: Machine) -> None:
        rules = RoutingSettings(memory_blocks=machine.cache_tokens // RoutingSettings().block)
        if policy == "least outstanding":
            rules = replace(rules, most_blocks=0)
        if policy == "hash":
            rules = replace(rules, memory_blocks=0)
        self._by_session = policy == "session"
        self._names = names
        self._turn = cycle(names) if policy == "round robin" else None
        self._balancer = LoadBalancer(rules)
        for name in names:
            self._balancer.add_worker(name)

    def place(self, request: EngineRequest) -> tuple[str, Assignment | None]:
        if self._turn is not None:
            return next(self._turn), None
        asked = request if self._by_session else replace(request, affinity=None)
        assignment = self._balancer.assign(asked, self._names)
        return assignment.name, assignment

    def ended(self, assignment: Assignment | None, tokens: int) -> None:
        if assignment is not None:
            assignment.charge.settle()
            self._balancer.expected.learn(tokens)
