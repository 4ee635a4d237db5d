"""The page in a real browser: a phone and a desk, light and dark, with traffic and without.

Screenshots land in the folder named by --basetemp (pytest's tmp_path); look at them.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest
import uvicorn
import websockets
from prometheus_client import CollectorRegistry

from eaglegate.engine.events import Ending, Finish, RequestFacts, Usage
from eaglegate.engine.fleet.types import WorkerState, WorkerStatus
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import (
    DecodeStep,
    EngineInfo,
    EngineRequest,
    Sampling,
    SpeculationInfo,
    Step,
    UndraftedReason,
)
from eaglegate.features.explanations.feature import follow
from eaglegate.features.explanations.ring import ExplanationRing
from eaglegate.observability.facts import EngineStarted
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.middleware import HttpExchange
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import ContentDelta, ReasoningDelta, ToolCallStart
from tests.features.explanations.application import make_app

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
DEVICES = {"phone": (390, 844, True), "desk": (1280, 900, False)}
GIVEN = {"session": 12, "prefix": 80, "hash": 3, "spilled": 5, "least": 0}
WORKERS = [
    WorkerStatus(f"http://10.0.0.{at}:8000", state, "", 7, 9120.4, GIVEN, 51_000, 1, 2, 1, counted)
    for at, state, counted in (
        (5, WorkerState.SERVING, Totals(verify_steps=10, proposed=30, accepted=16)),
        (6, WorkerState.OPEN, None),
    )
]
EVENTS = {"chat": ContentDelta("x"), "tools": ToolCallStart(0, "i", "f")}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def traffic(telemetry: Telemetry, clock: Clock) -> None:
    """An hour of good days, then five minutes in which tool calls are drafted badly."""
    dice = random.Random(1)
    info = EngineInfo("m", 4096, 2048, SpeculationInfo("eagle3.1", 3, "draft", "K = 3"))
    telemetry.facts.publish(EngineStarted("default", info, 12.0))
    for at in range(420):
        recent = at >= 320
        workload = dice.choice(["chat", "chat", "tools", "reasoning"])
        odds = 0.35 if recent and workload == "tools" else 0.8
        one(telemetry, clock, dice, at, workload, odds)
        clock.now += 2.8 if recent else 11.0


def one(telemetry, clock, dice, at, workload, odds) -> None:
    template, id_ = dice.choice(["", "9f86d081", "2c26b46b"]), f"r{at}"
    tokens = dice.choice([80, 700, 3000, 9000])
    facts = RequestFacts(
        id_, "chat", "m", "default", workload, template, True, tokens, (id_,), clock.now, clock.now
    )
    observation = telemetry.begin(facts)
    sequence, _ = telemetry.open_sequence(EngineRequest(id_, (1,), Sampling(max_tokens=9)), "m")
    sequence.add_step(Step((1,)))
    if workload == "reasoning":
        observation.choice(id_)(ReasoningDelta("x"))
    for _ in range(dice.randrange(10, 40)):
        clock.now += dice.uniform(0.008, 0.012)
        sequence.add_step(step(dice, odds))
        observation.choice(id_)(EVENTS.get(workload, ContentDelta("x")))
    observation.choice(id_)(Finish("stop", Usage(prompt=tokens, completion=sequence.tokens)))
    observation.end(Ending.COMPLETED)


def step(dice, odds) -> Step:
    if dice.random() < 0.05:
        return Step((1,), (DecodeStep(0, 0, 1, undrafted=UndraftedReason.REFUSED),))
    runs = itertools.takewhile(lambda at: dice.random() < odds - 0.07 * at, range(3))
    accepted = len(list(runs))
    return Step((1,) * (accepted + 1), (DecodeStep(3, accepted, accepted + 1),))


@asynccontextmanager
async def serving(telemetry: Telemetry, ring: ExplanationRing | None = None) -> AsyncIterator[str]:
    config = uvicorn.Config(make_app(telemetry, ring), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        await running


class Browser:
    """The part of the Chrome DevTools protocol that this test needs."""

    def __init__(self, connection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.problems: list[str] = []

    async def call(self, method: str, **params):
        id_ = next(self._ids)
        message = {"id": id_, "method": method, "params": params}
        await self._connection.send(orjson.dumps(message).decode())
        while True:
            message = orjson.loads(await self._connection.recv())
            if message.get("method") in ("Runtime.exceptionThrown", "Network.loadingFailed"):
                self.problems.append(str(message["params"]))
            if message.get("id") == id_:
                assert "error" not in message, message
                return message["result"]

    async def value(self, expression: str):
        answer = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True)
        return answer["result"].get("value")


@asynccontextmanager
async def browser(folder: Path, *flags: str) -> AsyncIterator[Browser]:
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        *flags,
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            port = await _port(process)
            async with httpx.AsyncClient() as client:
                pages = (await client.get(f"http://127.0.0.1:{port}/json")).json()
        address = next(p["webSocketDebuggerUrl"] for p in pages if p["type"] == "page")
        async with websockets.connect(address, max_size=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        await process.communicate()


async def _port(process) -> int:
    while line := await process.stderr.readline():
        if b"DevTools listening on ws://" in line:
            return int(line.split(b"127.0.0.1:")[1].split(b"/")[0])
    raise AssertionError("chromium ended before it listened")


READY = """new Promise(done => {
  const ready = () => document.body && document.body.dataset.ready;
  const look = () => ready() ? done(true) : setTimeout(look, 20);
  look();
})"""


async def show(page: Browser, url: str, device: str, scheme: str) -> None:
    width, height, mobile = DEVICES[device]
    await page.call("Page.enable")
    await page.call("Runtime.enable")
    await page.call("Network.enable")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    await page.call("Emulation.setEmulatedMedia", features=features)
    await page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=mobile,
    )
    await page.call("Page.navigate", url=url)
    assert await page.value(READY)


async def shoot(page: Browser, path: Path) -> None:
    shot = await page.call("Page.captureScreenshot", captureBeyondViewport=True)
    await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (.ci/packages)")
async def test_the_page_on_a_phone_and_a_desk_in_light_and_dark(tmp_path):
    clock = Clock()
    telemetry = Telemetry(
        GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry(), clock=clock
    )
    ring = ExplanationRing()
    follow(ring, telemetry.facts)
    traffic(telemetry, clock)
    telemetry.scope.workers = lambda: WORKERS
    async with (
        asyncio.timeout(120),
        serving(telemetry, ring) as url,
        browser(tmp_path / "p") as page,
    ):
        for device, scheme in itertools.product(DEVICES, ("light", "dark")):
            await show(page, url, device, scheme)
            text = await page.value("document.body.innerText")
            assert "eagle3.1, K = 3" in text
            assert "http://10.0.0.6:8000" in text
            assert "NaN" not in text
            assert "undefined" not in text
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.value(wide) == 0, "scrolls sideways"
            dark = await page.value("getComputedStyle(document.body).backgroundColor")
            assert (dark == "rgb(15, 19, 25)") is (scheme == "dark")
            await shoot(page, tmp_path / f"{device}-{scheme}.png")
        kinds = "[...document.querySelectorAll('#kinds button')]"
        await page.value(f"{kinds}.find(button => button.innerText === 'template').click()")
        assert "9f86d081" in await page.value("document.querySelector('#slices tbody').innerText")
        assert await page.value("document.querySelectorAll('#tiles polyline').length") == 5
        await page.value("document.querySelector('#kinds').children[1].click()")
        await page.value("document.querySelectorAll('#slices tbody tr')[0].click()")
        chosen = "document.getElementById('requestsof').textContent"
        async with asyncio.timeout(10):
            while not (await page.value(chosen)).startswith(": workload"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        workload = (await page.value(chosen)).removeprefix(": workload ")
        listed = await page.value("document.querySelector('#requests tbody td').textContent")
        assert ring.find(listed)[0].record.slices.labels.workload == workload
        assert await page.value("document.querySelectorAll('#charts polyline').length") == 6
        assert page.problems == []


EXPLAINED = """new Promise(done => {
  const box = document.getElementById("explained");
  const look = () => box.hidden ? setTimeout(look, 20) : done(box.innerText);
  look();
})"""
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m" + "x" * 5000


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (.ci/packages)")
async def test_the_page_explains_a_request(tmp_path):
    clock = Clock()
    telemetry = Telemetry(
        GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry(), clock=clock
    )
    ring = ExplanationRing()
    follow(ring, telemetry.facts)
    for at in range(20):
        one(telemetry, clock, random.Random(at), at, "chat", odds=0.8)
    refused = HttpExchange("r-hostile", "POST", HOSTILE, "", 1.0, 400)
    refused.refused, refused.ended = HOSTILE[:30], 1.5
    ring.complete(refused)
    async with (
        asyncio.timeout(60),
        serving(telemetry, ring) as url,
        browser(tmp_path / "p") as page,
    ):
        for device, scheme in (("phone", "dark"), ("desk", "light")):
            await show(page, url, device, scheme)
            await page.value("document.querySelectorAll('#requests tbody tr')[1].click()")
            text = await page.value(EXPLAINED)
            assert "r19" in text and "decode" in text and "depth over" in text
            assert await page.value("document.querySelectorAll('#explained .runs div').length") > 1
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.value(wide) == 0, "scrolls sideways"
            await shoot(page, tmp_path / f"explain-{device}-{scheme}.png")
        await page.value("document.querySelectorAll('#requests tbody tr')[0].click()")
        await page.value("new Promise(done => setTimeout(done, 500))")
        assert "r-hostile" in await page.value("document.getElementById('explained').innerText")
        assert await page.value("document.querySelectorAll('#requests img').length") == 0
        await page.value("[...document.querySelectorAll('#lists button')].at(-1).click()")
        assert "r-hostile" in await page.value(
            "document.querySelector('#requests tbody').innerText"
        )
        assert page.problems == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (.ci/packages)")
async def test_the_page_without_traffic(tmp_path):
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=("m",)), CollectorRegistry())
    async with asyncio.timeout(60), serving(telemetry) as url, browser(tmp_path / "p") as page:
        await show(page, url, "phone", "light")
        text = await page.value("document.body.innerText")
        assert "no draft verified" in text
        assert "Nothing in the last minutes." in text
        assert await page.value("document.getElementById('fleet').hidden")
        assert "NaN" not in text
        await shoot(page, tmp_path / "empty.png")
        assert page.problems == []
