"""Sender of sessions to a server, at a concurrency (closed loop) or at given times (open loop)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from eaglegate.lab.measure.datasets import CHAT, COMPLETIONS, Session, Turn
from eaglegate.lab.measure.stream import RequestResult, StreamReader

Report = Callable[[RequestResult], None]
"""Called with every result when it arrives."""


NOT_CAPTURED = {"x-eaglegate-capture": "off"}
"""Headers of every request: measurements are no traffic to learn from."""


@dataclass(frozen=True, slots=True)
class Target:
    """Server under test, and the fields of every body."""

    url: str
    """Base URL, without /v1."""
    model: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields set in every body, which override its own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields for bodies that lack them."""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    reports_steps: bool = False
    """True for an eaglegate, which accepts `per_request_spec_decode_metrics`."""


class LoadClient:
    """Client that sends turns as streams and reads their results. Errors are results as well."""

    def __init__(self, target: Target, client: httpx.AsyncClient) -> None:
        self.target = target
        self.cache_salt = ""
        """Salt that keeps this client's prompts apart in the prefix cache of an eaglegate."""
        self._client = client
        self._start = time.perf_counter()

    @classmethod
    @asynccontextmanager
    async def open(cls, target: Target) -> AsyncGenerator[LoadClient, None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        timeout = httpx.Timeout(target.timeout_s, pool=None)
        headers = {"accept-encoding": "identity", **NOT_CAPTURED, **target.headers}
        async with httpx.AsyncClient(
            limits=limits, timeout=timeout, headers=headers, trust_env=False
        ) as client:
            yield cls(target, client)

    def restart_clock(self) -> None:
        """Begin the time from which ``RequestResult.started`` counts."""
        self._start = time.perf_counter()

    async def get(self, path: str) -> httpx.Response:
        return await self._client.get(self.target.url + path)

    async def run_session(self, session: Session, report: Report) -> None:
        """Send all turns one after another. After an error, skip the rest of the session."""
        history: list[Mapping[str, Any]] = []
        for number, turn in enumerate(session.turns):
            if turn.pause:
                await asyncio.sleep(turn.pause)
            history += turn.messages
            result = await self.send(
                turn, history, f"{session.id}/{number}", session.id, session.category
            )
            report(result)
            if not result.ok:
                return
            if number + 1 < len(session.turns) and not brings_answer(session.turns[number + 1]):
                history.append({"role": "assistant", "content": result.text})

    async def send(
        self,
        turn: Turn,
        messages: Sequence[Mapping[str, Any]],
        identity: str,
        session: str,
        category: str = "",
    ) -> RequestResult:
        body = self.build_body(turn, messages)
        start = time.perf_counter()
        result = RequestResult(identity, session, category, started=start - self._start)
        reader = StreamReader(result)
        try:
            await self._stream(turn, body, reader, start)
        except (httpx.HTTPError, orjson.JSONDecodeError) as error:
            result.error = f"{type(error).__name__}: {error}"
        return result

    def build_body(self, turn: Turn, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        target = self.target
        body: dict[str, Any] = {**target.defaults, **turn.body, **target.fields}
        body |= {"stream": True}
        if messages:
            body["messages"] = list(messages)
        if target.model:
            body["model"] = target.model
        if turn.path.endswith((CHAT, COMPLETIONS)):
            body["stream_options"] = {"include_usage": True}
        if target.reports_steps:
            body.setdefault("per_request_spec_decode_metrics", "detailed")
            if self.cache_salt:
                body.setdefault("cache_salt", self.cache_salt)
        if "max_tokens" in body and "max_completion_tokens" in turn.body:
            del body["max_tokens"]
        return body

    async def _stream(
        self, turn: Turn, body: Mapping[str, Any], reader: StreamReader, start: float
    ) -> None:
        result = reader.result
        headers = {"content-type": "application/json"}
        async with self._client.stream(
            "POST", self.target.url + turn.path, content=orjson.dumps(body), headers=headers
        ) as response:
            result.status = response.status_code
            if response.status_code != httpx.codes.OK:
                reader.read_error(await response.aread(), response.status_code)
                return
            async for data in response.aiter_raw():
                reader.feed(data, time.perf_counter() - start)
                if turn.leave_after is not None and _count_tokens(result) >= turn.leave_after:
                    result.left = True
                    result.output_tokens = _count_tokens(result)
                    return
        reader.finish()


def _count_tokens(result: RequestResult) -> int:
    """Return the tokens received so far, or the chunks if the server reports no ids."""
    return len(result.token_ids) or len(result.gaps) + (result.ttft is not None)


def brings_answer(turn: Turn) -> bool:
    """Return True if the data has its own answer to the previous turn."""
    return bool(turn.messages) and turn.messages[0].get("role") == "assistant"


async def run_closed(
    client: LoadClient, sessions: Sequence[Session], concurrency: int, report: Report
) -> float:
    """Run ``concurrency`` sessions at a time. Return the seconds it took."""
    queue = iter(sessions)

    async def work() -> None:
        for session in queue:
            await client.run_session(session, report)

    client.restart_clock()
    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(min(concurrency, len(sessions)))))
    return time.perf_counter() - start


async def run_open(
    client: LoadClient, sessions: Sequence[Session], times: Sequence[float], report: Report
) -> float:
    """Start each session at its time, however many are running. Return the seconds it took."""

    async def run_later(session: Session, delay: float) -> None:
        await asyncio.sleep(max(0.0, start + delay - time.perf_counter()))
        await client.run_session(session, report)

    client.restart_clock()
    start = time.perf_counter()
    pairs = zip(sessions, times, strict=True)
    await asyncio.gather(*(run_later(session, delay) for session, delay in pairs))
    return time.perf_counter() - start


def draw_arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Draw arrival times at ``rate`` sessions a second, like `vllm bench serve`.

    Gaps follow a gamma distribution of shape ``burstiness``: 1 is Poisson, less gives bursts, more
    gives even arrivals. They are scaled so that the last arrival is at ``count / rate``.
    """
    generator = random.Random(seed)
    gaps = [generator.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count)]
    scale = count / rate / sum(gaps)
    times, arrival = [], 0.0
    for gap in gaps:
        arrival += gap * scale
        times.append(arrival)
    return times


def draw_bursts(count: int, rate: float, size: int) -> list[float]:
    """Draw arrivals of ``size`` sessions at once, at ``rate`` sessions a second on average."""
    return [number // size * size / rate for number in range(count)]


def read_arrivals(sessions: Sequence[Session], speed: float = 1.0) -> list[float]:
    """Return the recorded times of first turns after the earliest one; 0 without times."""
    times = [session.turns[0].arrival_s or 0.0 for session in sessions]
    start = min(times, default=0.0)
    return [(time_s - start) / speed for time_s in times]
