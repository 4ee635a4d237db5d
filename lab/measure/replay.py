"""``eaglegate replay``: captured requests sent again to one or two settings, paired by request.

Requests keep their session, their order in it and, if asked for, their recorded times. The capture
is sent in windows of whole sessions, and the settings take turns at each window, so that a
disturbance of the machine affects both.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from eaglegate.lab.measure.datasets import COMPLETIONS, FIRST_TOKEN, TOKEN_RANGE, Session, Turn
from eaglegate.lab.measure.load import LoadClient
from eaglegate.lab.measure.runs import BenchError, RunJournal, strip_private
from eaglegate.lab.measure.servers import Say, Setting
from eaglegate.lab.measure.stream import RequestResult
from eaglegate.lab.measure.tool_outcomes import judge_calls
from eaglegate.observability.captures.files import list_files, read_lines, read_records
from eaglegate.observability.captures.record import (
    BLOCK,
    OURS,
    TRACE_BLOCK,
    CaptureError,
    CaptureRecord,
)

RECORDED = "recorded"
LEFT = "client_gone"
OF_EXCHANGE = ["model", "stream", "stream_options", "background", "store", "previous_response_id"]
SLICES = ("workload", "context", "template", "api")
"""Fields of a record by which a report is split."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Captured request that is ready to be sent."""

    id: str
    cluster: str
    """Session of the request, which is the unit of the statistics."""
    turn: Turn
    slices: Mapping[str, str]
    greedy: bool
    """True for one choice at temperature 0, whose text must not differ."""
    capture_result: RequestResult | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    is_invented: bool = False
    """True if the prompt is made from hashes: its lengths and shared prefixes are real, its text is
    not.
    """

    @property
    def arrival_s(self) -> float:
        return self.turn.arrival_s or 0.0


@dataclass(slots=True)
class ReplayOutcome:
    """Outcome of a request in one setting, without its text."""

    result: RequestResult
    digest: str = ""
    """Digest of all text that the model wrote; empty without an answer."""
    calls: dict[str, int] = field(default_factory=dict)
    """Tool calls by outcome."""

    def to_json(self) -> dict[str, Any]:
        result = strip_private(self.result)
        return {"result": result, "digest": self.digest, "calls": self.calls}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ReplayOutcome:
        return cls(RequestResult.from_json(row["result"]), row["digest"], row["calls"])


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    requests: tuple[ReplayRequest, ...]
    settings: tuple[Setting, ...]
    """Settings, the first of which is the base. With only one, the recorded run is."""
    speed: float = 1.0
    """Factor by which recorded times are sped up; 0 for the closed loop."""
    concurrency: int = 4
    """Number of sessions at a time in the closed loop."""
    windows: int = 16
    seed: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    timeout_s: float = 600.0
    warmup: int = 4

    def digest(self) -> dict[str, Any]:
        return {
            "requests": [request.id for request in self.requests],
            "settings": [[s.name, s.url, list(s.flags), dict(s.fields)] for s in self.settings],
            "speed": self.speed,
            "concurrency": self.concurrency,
            "windows": self.windows,
        }

    def split_windows(self) -> list[list[list[ReplayRequest]]]:
        """Split the sessions, in order of their beginning, into windows of about equal size."""
        sessions: dict[str, list[ReplayRequest]] = {}
        for request in sorted(self.requests, key=lambda request: request.arrival_s):
            sessions.setdefault(request.cluster, []).append(request)
        size = max(1, len(self.requests) // self.windows)
        windows: list[list[list[ReplayRequest]]] = [[]]
        for session in sessions.values():
            if sum(map(len, windows[-1])) >= size:
                windows.append([])
            windows[-1].append(session)
        return windows

    def draw_order(self, window: int) -> list[Setting]:
        """Draw the order of settings in a window. It is the same on every call."""
        return random.Random(f"{self.seed} {window}").sample(self.settings, len(self.settings))

    def number_windows(self) -> dict[str, int]:
        """Return the window of each request, by id."""
        return {
            request.id: number
            for number, window in enumerate(self.split_windows())
            for session in window
            for request in session
        }


def read_requests(records: Sequence[CaptureRecord]) -> Iterator[ReplayRequest]:
    """Yield each record that can be sent, with its body or with prompts made from hashes."""
    start = min((r.timestamp for r in records if r.timestamp is not None), default=0.0)
    for number, record in enumerate(records):
        identity = record.id or f"request-{number}"
        try:
            body, path, is_invented = record.request_body(), record.path, False
        except CaptureError:
            body, path, is_invented = _invent_body(record), COMPLETIONS, True
        arrival_s = None if record.timestamp is None else (record.timestamp - start) / 1e3
        leave_after = record.tokens if record.ending == LEFT else None
        yield ReplayRequest(
            id=identity,
            cluster=record.cluster or identity,
            turn=Turn(
                body=_strip_body(body), path=path, arrival_s=arrival_s, leave_after=leave_after
            ),
            slices={name: value for name in SLICES if (value := getattr(record, name))},
            greedy=not is_invented and leave_after is None and _is_greedy(record, body),
            capture_result=_read_recorded(record, identity),
            tools=tuple(body.get("tools") or ()),
            is_invented=is_invented,
        )


def is_trace(path: Path) -> bool:
    """Return True for a capture, or a trace in that layout such as Mooncake's: rows with a time."""
    try:
        line = next(read_lines(list_files(path)[0]), b"")
        row = orjson.loads(line)
    except (CaptureError, OSError, IndexError, orjson.JSONDecodeError):
        return False
    return isinstance(row, dict) and ("timestamp" in row or OURS in row)


def read_trace(path: Path) -> list[Session]:
    """Read a trace as a data set for a bench, with its recorded times. Raises CaptureError."""
    sessions: dict[str, list[ReplayRequest]] = {}
    for request in read_requests(list(read_records(path))):
        sessions.setdefault(request.cluster, []).append(request)
    return [
        Session(name, tuple(r.turn for r in group), group[0].slices.get("workload", "trace"))
        for name, group in sessions.items()
    ]


def _is_greedy(record: CaptureRecord, body: Mapping[str, Any]) -> bool:
    temperature = body.get("temperature", record.sampling.get("temperature"))
    return bool(temperature == 0 and body.get("n", 1) == 1)


def _strip_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Strip the fields that apply only to the recorded exchange."""
    return {name: value for name, value in body.items() if name not in OF_EXCHANGE}


def _invent_body(record: CaptureRecord) -> dict[str, Any]:
    """Make a prompt of random tokens with the recorded length, equal where hashes are equal."""
    prompt = record.prompts[0] if record.prompts else None
    if prompt is not None and prompt.blocks is not None:
        hashes, block, length = prompt.blocks, BLOCK, prompt.tokens
    else:
        hashes, block = record.hash_ids or (), TRACE_BLOCK
        length = record.input_length or (prompt.tokens if prompt else 1)
    tokens: list[int] = []
    for number in range(-(-length // block)):
        identity: object = hashes[number] if number < len(hashes) else (record.id, number)
        source = random.Random(str(identity))
        tokens += [FIRST_TOKEN + source.randrange(TOKEN_RANGE) for _ in range(block)]
    return {
        "prompt": tokens[:length],
        "max_tokens": max(1, record.tokens),
        "ignore_eos": True,
        "temperature": 0,
    }


def _read_recorded(record: CaptureRecord, identity: str) -> RequestResult | None:
    """Return the recorded run as a result; None if the record does not have it."""
    if record.duration_ms is None or not record.choices:
        return None
    choice = record.choices[0]
    result = RequestResult(
        identity,
        record.cluster,
        ttft=None if record.ttft_ms is None else record.ttft_ms / 1e3,
        latency=record.duration_ms / 1e3,
        output_tokens=record.tokens,
        prompt_tokens=sum(prompt.tokens for prompt in record.prompts),
        finish=choice.finish,
        token_ids=list(choice.token_ids or ()),
        drafted=[step.drafted for step in choice.steps if step.drafted],
        accepted=[step.accepted for step in choice.steps if step.drafted],
    )
    result.left = record.ending == LEFT
    if record.ending not in ("", "completed", LEFT):
        result.error = f"recorded as {record.ending}"
    return result


def recorded_outcome(request: ReplayRequest) -> ReplayOutcome | None:
    if request.capture_result is None:
        return None
    return ReplayOutcome(request.capture_result, digest_answer(request.capture_result))


def digest_answer(result: RequestResult) -> str:
    """Return a digest of the token ids if known, else of the text with its calls."""
    if not result.ok or result.left:
        return ""
    content: Any = result.token_ids or [
        result.text,
        result.reasoning,
        [[call.name, call.arguments] for call in result.tool_calls],
    ]
    return hashlib.blake2b(orjson.dumps(content), digest_size=12).hexdigest()


class ReplayJournal(RunJournal):
    """Outcomes of complete windows."""

    def __init__(self, path: Path, digest: Mapping[str, Any], *, resume: bool) -> None:
        super().__init__(path, digest, resume=resume)
        self.finished_windows: set[tuple[int, str]] = set()
        self.outcomes: dict[str, dict[str, ReplayOutcome]] = {}
        """Outcomes by setting and request."""
        for row in self.rows:
            outcomes = [ReplayOutcome.from_json(outcome) for outcome in row["outcomes"]]
            self._take(row["window"], row["setting"], outcomes)

    def _take(self, window: int, setting: str, outcomes: Sequence[ReplayOutcome]) -> None:
        self.finished_windows.add((window, setting))
        by_request = self.outcomes.setdefault(setting, {})
        by_request |= {outcome.result.id: outcome for outcome in outcomes}

    def add(self, window: int, setting: str, outcomes: Sequence[ReplayOutcome]) -> None:
        self._take(window, setting, outcomes)
        rows = [outcome.to_json() for outcome in outcomes]
        self.append({"window": window, "setting": setting, "outcomes": rows})


class ReplayRun:
    """One replay. ``clients`` has the settings' clients by name."""

    def __init__(self, plan: ReplayPlan, clients: Mapping[str, LoadClient], say: Say) -> None:
        self._plan = plan
        self._clients = clients
        self._say = say

    async def run(self, journal: ReplayJournal, *, bar: bool) -> None:
        """Run every window that the journal lacks, in each setting in turn."""
        plan = self._plan
        windows = plan.split_windows()
        await self._warm_up(windows)
        total = len(plan.requests) * len(plan.settings)
        num_done = sum(len(outcomes) for outcomes in journal.outcomes.values())
        with tqdm(
            total=total, initial=num_done, unit="req", disable=not bar, smoothing=0.1
        ) as progress:
            for number, window in enumerate(windows):
                for setting in plan.draw_order(number):
                    if (number, setting.name) not in journal.finished_windows:
                        progress.set_description(f"{number + 1}/{len(windows)} {setting.name}")
                        outcomes = await self._run_window(setting, window, progress)
                        journal.add(number, setting.name, outcomes)

    async def _warm_up(self, windows: Sequence[Sequence[Sequence[ReplayRequest]]]) -> None:
        """Send some requests to every setting without counting them. Raises BenchError."""
        requests = [request for session in windows[0] for request in session][: self._plan.warmup]
        for name, client in self._clients.items():
            self._say(f"warming up {name}")
            results = [await send(client, request) for request in requests]
            if results and not any(result.ok for result in results):
                raise BenchError(f"{name} answered no request of the warm-up: {results[0].error}")

    async def _run_window(
        self, setting: Setting, window: Sequence[Sequence[ReplayRequest]], progress: Any
    ) -> list[ReplayOutcome]:
        client, plan = self._clients[setting.name], self._plan
        room = asyncio.Semaphore(plan.concurrency if not plan.speed else 1 << 20)
        outcomes: list[ReplayOutcome] = []
        start = time.perf_counter()
        client.restart_clock()
        first_arrival = min(request.arrival_s for session in window for request in session)

        async def play(session: Sequence[ReplayRequest]) -> None:
            async with room:
                for request in session:
                    if plan.speed:
                        send_time = start + (request.arrival_s - first_arrival) / plan.speed
                        await asyncio.sleep(max(0.0, send_time - time.perf_counter()))
                    result = await send(client, request)
                    calls = judge_calls(result, request.tools)
                    outcomes.append(ReplayOutcome(result, digest_answer(result), calls))
                    progress.update()

        await asyncio.gather(*(play(session) for session in window))
        return outcomes


async def send(client: LoadClient, request: ReplayRequest, **fields: Any) -> RequestResult:
    """Send a request as a stream; ``fields`` override its body."""
    turn = replace(request.turn, body={**request.turn.body, **fields})
    return await client.send(turn, (), request.id, request.cluster)
