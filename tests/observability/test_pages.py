from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette

from eaglegate.engine.events import Ending, Finish, Usage
from eaglegate.engine.totals import Totals
from eaglegate.engine.types import DecodeStep, Step
from eaglegate.observability.pages import make_routes
from eaglegate.observability.problems import find_problem
from eaglegate.observability.telemetry import Telemetry
from eaglegate.text.events import ContentDelta, ReasoningDelta
from tests.observability.scene import begin, make_telemetry


class Now:
    value = 1000.0

    def __call__(self) -> float:
        return self.value


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def telemetry(now) -> Telemetry:
    return make_telemetry(clock=now)


async def get(telemetry: Telemetry, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(Starlette(routes=make_routes(telemetry)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(path)


async def test_the_page_has_the_headlines_of_further_parts(telemetry):
    part = SimpleNamespace(
        describe=lambda: {"clock": {"hour": 3}},
        list_headlines=lambda: ["clock: 3"],
        list_problems=lambda: [],
    )
    telemetry.parts.append(part)
    page = (await get(telemetry, "/debug/speculation")).json()
    assert page["headlines"] == ["clock: 3"]
    assert page["clock"] == {"hour": 3}


def request(
    telemetry: Telemetry, now: Now, accepted: int, steps: int = 20, images: int = 0
) -> None:
    observation = begin(telemetry, prompt_tokens=600, images=images)
    sequence = observation.sequences["r-0"]
    sequence.add_step(Step((1,)))
    observation.choice("r-0")(ReasoningDelta("hm"))
    for _ in range(steps):
        now.value += 0.01
        size = accepted + 1
        sequence.add_step(Step((1,) * size, (DecodeStep(3, accepted, size),)))
        observation.choice("r-0")(ContentDelta("x"))
    observation.choice("r-0")(Finish("stop", Usage(prompt=600, completion=sequence.tokens)))
    observation.end(Ending.COMPLETED)


async def test_every_slice_with_its_own_numbers(telemetry, now):
    request(telemetry, now, accepted=2)
    data = (await get(telemetry, "/debug/speculation")).json()
    assert data["all"]["acceptance_length"] == 3
    assert data["all"]["baseline"] is None
    assert data["all"]["conditional_acceptance"] == [1, 1, 0]
    assert data["all"]["tpot_s"] == pytest.approx(0.2 / 60)
    slices = data["slices"]
    assert set(slices) == {"lane", "workload", "context", "phase", "template", "key", "input"}
    assert slices["input"] == {}
    assert slices["key"] == {}
    assert slices["workload"]["chat"]["requests"] == 1
    assert slices["context"]["513-2k"]["tokens"] == 61
    content = slices["phase"]["content"]
    assert content["acceptance_length"] == 3
    assert (content["mean_depth"], content["wasted_tokens"] / content["drafted_tokens"]) == (
        3,
        1 / 3,
    )
    assert (data["all"]["failed"], data["all"]["problem"]) == (0, None)
    assert data["all"]["ttft_s"] is not None
    assert slices["phase"]["reasoning"]["acceptance_length"] is None
    assert slices["template"]["none"]["fallback_ratio"] == 0
    assert sum(point["acceptance_length"] is not None for point in data["history"]) == 1


async def test_prompts_with_images_have_a_slice_of_their_own(telemetry, now):
    request(telemetry, now, accepted=2)
    request(telemetry, now, accepted=0, images=2)
    data = (await get(telemetry, "/debug/speculation")).json()
    assert data["all"]["acceptance_length"] == 2
    assert data["slices"]["input"]["images"]["acceptance_length"] == 1
    assert data["slices"]["input"]["images"]["requests"] == 1
    page = (await get(telemetry, "/metrics")).text
    labels = '{input="images",lane="default",model="m"}'
    assert f"eaglegate_input_verify_steps_total{labels} 20.0" in page
    assert f"eaglegate_input_fallback_steps_total{labels} 20.0" in page


async def test_a_collapse_shows_against_the_trailing_baseline(telemetry, now):
    request(telemetry, now, accepted=2)
    now.value += 400
    request(telemetry, now, accepted=0)
    row = (await get(telemetry, "/debug/speculation")).json()["slices"]["workload"]["chat"]
    assert (row["acceptance_length"], row["baseline"]) == (1, 3)
    assert row["against_baseline"] == pytest.approx(1 / 3)
    page = (await get(telemetry, "/metrics")).text
    labels = '{lane="default",model="m",workload="chat"}'
    assert f"eaglegate_acceptance_length{labels} 1.0" in page
    assert f"eaglegate_acceptance_length_baseline{labels} 3.0" in page


async def test_no_traffic_is_no_data(telemetry):
    data = (await get(telemetry, "/debug/speculation")).json()
    assert data["all"]["acceptance_length"] is None
    assert data["all"]["fallback_ratio"] is None
    assert data["history"] == []
    assert data["tokens_per_s"] == 0


async def test_the_page_needs_nothing_from_elsewhere(telemetry):
    answer = await get(telemetry, "/")
    assert answer.headers["content-type"].startswith("text/html")
    outside = [part for part in ("@import", "//cdn", "https://") if part in answer.text]
    assert not outside
    loaded = re.findall(r'(?:src|href)="([^"]*)"', answer.text)
    assert {"page/page.css", "page/operate.js", "page/playground.js"} <= set(loaded)
    assert all(not part.startswith(("http", "//")) for part in loaded)


def test_the_package_holds_every_file_of_the_page():
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["eaglegate.observability"]
    packed = {path for pattern in patterns for path in (root / "observability").glob(pattern)}
    assert set((root / "observability" / "page").iterdir()) <= packed


@pytest.mark.parametrize(
    ("steps", "accepted", "found"), [(199, 0, False), (200, 0, True), (200, 40, False)]
)
def test_a_draft_that_is_wrong_from_the_start_is_a_problem(steps, accepted, found):
    problem = find_problem(Totals(verify_steps=steps, accepted=accepted))
    assert (problem is not None) is found


def test_bad_drafts_that_the_planner_avoids_are_no_problem():
    assert find_problem(Totals(verify_steps=200, off=201)) is None
