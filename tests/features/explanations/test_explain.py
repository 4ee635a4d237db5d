"""Explanations: what is kept of a request, that its parts add up, and that no text is kept."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from typing import Any

import httpx
import orjson
import pytest
from msgspec import structs

from eaglegate.engine.events import Ending, Finish, RequestTimes, Usage
from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.types import DecodeStep, DepthReason, Drafter, Step, UndraftedReason
from eaglegate.features.explanations import ring as explain
from eaglegate.features.explanations.command import format_explanation, format_lists, main
from eaglegate.features.explanations.feature import follow
from eaglegate.features.explanations.ring import ExplanationRing
from eaglegate.observability.facts import AnswerAudited, RequestInterrupted
from eaglegate.observability.middleware import HttpExchange
from eaglegate.text.events import ContentDelta, FinishReason
from tests.features.explanations.application import make_app
from tests.observability.scene import begin, make_telemetry

SECRET = "the prompt nobody may read"
PLANNER = {
    "cost": {
        "milliseconds": {
            "fixed": 8.0, "request": 1.0, "verified_token": 0.5, "drafting": 1.0,
            "depth": 1.0, "depth_and_request": 0.0, "verifying": 0.0,
        }
    }
}  # fmt: skip


class Traffic:
    """Requests with times of our choosing, as the gateway reports them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ring = ExplanationRing(lambda: 1_700_000_000.0 + self.now)
        self.telemetry = make_telemetry(clock=lambda: self.now)
        follow(self.ring, self.telemetry.facts)
        self.num = 0

    def answer(
        self,
        steps: Sequence[tuple[float, Step]],
        ending: Ending = Ending.COMPLETED,
        losses: Sequence[float] = (),
        times: RequestTimes | None = None,
        status: int = 200,
        choices: int = 1,
    ) -> str:
        """One exchange: each step after so many seconds; a loss at each of ``losses``. All choices
        get the same.
        """
        self.num += 1
        name, began = f"req-{self.num}", self.now
        sequences = tuple(f"{name}-{at}" for at in range(choices))
        arrived = self.now = self.now + 0.01
        self.now += 0.5
        secret = ({"role": "user", "content": SECRET},)
        more = {"arrived": arrived, "messages": secret, "times": times or RequestTimes()}
        observation = begin(self.telemetry, *sequences, id=name, prompt_tokens=12, **more)
        timelines = [observation.sequences[one] for one in sequences]
        for seconds, step in steps:
            until = self.now + seconds
            for loss in losses:
                if self.now < began + loss <= until:
                    self.now = began + loss
                    for one in sequences:
                        self.telemetry.facts.publish(RequestInterrupted("resumed", one))
            self.now = until
            for one, timeline in zip(sequences, timelines, strict=True):
                timeline.add_step(step)
                observation.choice(one)(ContentDelta(SECRET))
        tokens = sum(len(step.token_ids) for _, step in steps)
        for one in sequences:
            observation.choice(one)(Finish("stop", Usage(12, tokens, cached=8)))
        observation.end(ending)
        self.now += 0.02
        exchange = HttpExchange(f"http-{self.num}", "POST", "/v1/chat/completions", "", began)
        exchange.observation, exchange.ended, exchange.status = observation, self.now, status
        self.ring.complete(exchange)
        return name

    async def get(self, *paths: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(self.telemetry, self.ring))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return [await client.get(f"/debug/requests{path}") for path in paths]

    def explain(self, name: str, planner: dict[str, Any] | None = None) -> dict[str, Any]:
        (entry,) = self.ring.find(name)
        return explain.explain(entry, planner or {})


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


def verify(drafted: int, accepted: int) -> Step:
    delivered = accepted + 1
    return Step((1,) * delivered, (DecodeStep(drafted, accepted, delivered),))


STEPS = (
    (0.2, Step((1,), queued_s=0.05)),
    (0.1, verify(3, 2)),
    (0.1, verify(3, 0)),
    (0.1, Step((1,), (DecodeStep(0, 0, 1, undrafted=UndraftedReason.OFF),))),
    (0.1, Step((1, 1), (DecodeStep(1, 1, 2),), finish=FinishReason.STOP, preemptions=2)),
)


def parts_of(row: dict[str, Any]) -> dict[str, float]:
    return {part["name"]: part["ms"] for part in row["parts"]}


def test_an_audit_is_shown_with_its_request() -> None:
    traffic = Traffic()
    traffic.answer([(0.1, Step((1,))), (0.1, Step((2,), finish=FinishReason.STOP))])
    entry = traffic.ring._recent[-1]
    assert isinstance(entry, explain.ExplainedRequest)
    (sequence,) = entry.record.facts.sequences
    result = {"outcome": "near_tie", "detail": "margin 0.004"}
    for _ in range(explain.RECENT):  # it is the first of the slowest ones now
        traffic.answer([(0.1, Step((1,), finish=FinishReason.STOP))])
    for name in (sequence, "forgotten"):
        traffic.telemetry.facts.publish(AnswerAudited(name, "near_tie", result))
    shown = explain.explain(entry, {})
    assert [audit["outcome"] for audit in shown["audits"]] == ["near_tie"]
    assert "audit of choice 0: near_tie (margin 0.004)" in "\n".join(format_explanation(shown))


def test_the_parts_add_up_to_the_wall_time(traffic: Traffic) -> None:
    times = RequestTimes(rendering=0.2, compiling=0.1, reading=0.03, writing=0.05)
    row = traffic.explain(traffic.answer(STEPS, times=times))
    parts = parts_of(row)
    assert sum(parts.values()) == pytest.approx(row["wall_ms"], rel=1e-3)
    assert row["wall_ms"] == pytest.approx(10 + 500 + 600 + 20, abs=0.1)
    assert parts == pytest.approx(
        {
            "receiving": 10, "queue": 200, "rendering": 200, "grammar": 100, "engine queue": 50,
            "prefill": 150, "decode": 320, "recovery": 0, "parsing": 30, "writing": 50,
            "closing": 20,
        },
        abs=0.1,
    )  # fmt: skip


def test_depths_are_told_with_their_reasons(traffic: Traffic) -> None:
    row = traffic.explain(traffic.answer(STEPS))
    (choice,) = row["choices"]
    told = [(run["drafted"], run["reason"], run["steps"], run["tokens"]) for run in choice["runs"]]
    assert told == [
        (3, None, 2, 4), (0, "off", 1, 1), (1, None, 1, 2),
    ]  # fmt: skip
    assert [run["from_token"] for run in choice["runs"]] == [0, 4, 5]
    assert (choice["steps"], choice["preemptions"]) == (4, 2)
    assert row["cached_tokens"] == 8
    assert row["speculation"] == {
        "verify_steps": 3, "drafted": 7, "accepted": 3, "rejected": 4,
        "acceptance_length": 2.0, "fallback_ratio": row["speculation"]["fallback_ratio"],
        "lookup_steps": 0, "lookup_accepted": 0,
    }  # fmt: skip


def test_the_planners_reasons_are_counted_by_run(traffic: Traffic) -> None:
    cost, probe = (
        (0.1, Step((1, 1), (DecodeStep(depth, 1, 2, planned=reason),)))
        for depth, reason in ((1, DepthReason.COST), (2, DepthReason.PROBE))
    )
    more = (0.1, Step((1, 1), (DecodeStep(1, 1, 2, planned=DepthReason.BOUND),)))
    row = traffic.explain(traffic.answer([STEPS[0], cost, cost, more, probe, STEPS[3]]))
    (choice,) = row["choices"]
    assert choice["planned"] == {"cost": 2, "probe": 1, "bound": 1}
    assert orjson.loads(orjson.dumps(choice)) == choice, "the page gets it as JSON"
    assert [run["planned"] for run in choice["runs"]] == [{"cost": 2, "bound": 1}, {"probe": 1}, {}]
    text = "\n".join(format_explanation(row))
    assert "depth 1, 3 steps, 6 tokens, 300.0 ms, planned: cost 2, bound 1" in text
    assert "depth 2, 1 step, 2 tokens, 100.0 ms, planned: probe" in text


def test_lookups_are_counted_by_run(traffic: Traffic) -> None:
    lookup = (0.1, Step((1, 1), (DecodeStep(8, 1, 2, drafter=Drafter.LOOKUP),)))
    row = traffic.explain(traffic.answer([STEPS[0], lookup, lookup, STEPS[3]]))
    assert [run["lookups"] for run in row["choices"][0]["runs"]] == [2, 0]
    assert (row["speculation"]["lookup_steps"], row["speculation"]["lookup_accepted"]) == (2, 2)
    text = "\n".join(format_explanation(row))
    assert "of these, 2 verify steps of lookups, 2 accepted" in text
    assert "depth 8, 2 steps, 4 tokens, 200.0 ms, 2 lookups" in text


def test_the_time_until_an_answer_goes_on_is_recovery(traffic: Traffic) -> None:
    """Two losses before the same step: the second one waits no longer than the first."""
    steps = (STEPS[0], (2.0, verify(3, 3)), (0.1, Step((1,), finish=FinishReason.STOP)))
    row = traffic.explain(traffic.answer(steps, losses=(1.21, 1.71)))
    assert parts_of(row)["recovery"] == pytest.approx(1500, abs=1)
    assert sum(parts_of(row).values()) == pytest.approx(row["wall_ms"], rel=1e-3)
    losses = row["choices"][0]["interruptions"]
    assert [loss["outcome"] for loss in losses] == ["resumed", "resumed"]
    assert [entry["id"] for entry in traffic.ring.list()["failed"]] == [row["id"]]


def test_choices_that_wait_together_recover_once(traffic: Traffic) -> None:
    steps = (STEPS[0], (2.0, verify(3, 3)), (3.0, Step((1,), finish=FinishReason.STOP)))
    parts = parts_of(traffic.explain(traffic.answer(steps, losses=(1.21,), choices=3)))
    assert parts["recovery"] == pytest.approx(1500, abs=1)
    assert parts["decode"] == pytest.approx(3500, abs=1)


def test_a_recovery_before_the_first_token_is_not_of_decoding(traffic: Traffic) -> None:
    steps = ((4.0, STEPS[0][1]), *STEPS[1:])
    row = traffic.explain(traffic.answer(steps, losses=(1.51,)))
    parts = parts_of(row)
    assert parts["recovery"] == pytest.approx(3000, abs=1)
    assert parts["prefill"] == pytest.approx(950, abs=1)
    assert parts["decode"] == pytest.approx(400, abs=1)
    assert sum(parts.values()) == pytest.approx(row["wall_ms"], rel=1e-3)


def test_the_queue_of_an_engine_that_goes_on_is_recovery(traffic: Traffic) -> None:
    later = structs.replace(verify(3, 3), queued_s=0.15)
    last = (0.1, Step((1,), finish=FinishReason.STOP))
    row = traffic.explain(traffic.answer((STEPS[0], (2.0, later), last), losses=(1.21,)))
    assert parts_of(row)["engine queue"] == 50


def test_decoding_is_split_by_the_planner_s_costs(traffic: Traffic) -> None:
    """Depth 3: 9 to verify + 1.5, 4 to draft; so a step of 14.5 has 4 of drafting."""
    steps = ((0.1, Step((1,))), (1.45, verify(3, 3)), (1.45, verify(3, 0)))
    row = traffic.explain(traffic.answer(steps), PLANNER)
    assert row["decode"]["drafting_ms"] == pytest.approx(800, rel=1e-3)
    assert row["decode"]["verifying_ms"] == pytest.approx(2100, rel=1e-3)
    assert row["decode"]["of_which_rejected_ms"] == pytest.approx(550, rel=1e-3)
    assert traffic.explain(row["id"])["decode"] is None


def test_decoding_is_not_split_before_a_step_is_known(traffic: Traffic) -> None:
    row = traffic.explain(traffic.answer(STEPS), DepthPlanner(3).describe())
    assert row["decode"] is None


def test_a_step_with_a_lookup_has_one_pass_of_the_draft(traffic: Traffic) -> None:
    """A lookup of 8: 13 to verify, of which 3.5 for the seven rejected tokens, and 2 to draft."""
    lookup = Step((1, 1), (DecodeStep(8, 1, 2, drafter=Drafter.LOOKUP),))
    row = traffic.explain(traffic.answer(((0.1, Step((1,))), (1.5, lookup))), PLANNER)
    assert row["decode"]["drafting_ms"] == pytest.approx(200, rel=1e-3)
    assert row["decode"]["verifying_ms"] == pytest.approx(1300, rel=1e-3)
    assert row["decode"]["of_which_rejected_ms"] == pytest.approx(350, rel=1e-3)


def test_no_text_is_kept(traffic: Traffic) -> None:
    name = traffic.answer(STEPS)
    gc.collect()
    (entry,) = traffic.ring.find(name)
    assert isinstance(entry, explain.ExplainedRequest)
    assert entry.record.facts.messages == ()
    assert SECRET not in json.dumps(traffic.explain(name)) + repr(entry)


def test_the_ring_is_bounded_and_keeps_the_extremes(traffic: Traffic) -> None:
    slow = traffic.answer([(9.0, STEPS[0][1]), *STEPS[1:]])
    failed = traffic.answer(STEPS[:2], Ending.ENGINE, status=500)
    bad = traffic.answer([STEPS[0], *[(0.1, verify(3, 0))] * 30])
    for _ in range(explain.RECENT + 60):
        traffic.answer([STEPS[0], *[(0.1, verify(3, 3))] * 30])
    lists = traffic.ring.list(limit=10_000)
    assert len(lists["recent"]) == explain.RECENT
    assert lists["slowest"][0]["id"] == slow and len(lists["slowest"]) == explain.SLOWEST
    assert lists["worst_accepted"][0]["id"] == bad
    assert [row["id"] for row in lists["failed"]] == [failed]
    for name in (slow, failed, bad):
        assert traffic.ring.find(name)
    assert traffic.ring.find("req-50") == []


def test_a_slow_request_of_yesterday_gives_way(traffic: Traffic) -> None:
    traffic.answer([(99.0, STEPS[0][1])])
    traffic.now += explain.KEPT_S / 2
    fresh = traffic.answer(STEPS)
    traffic.now += explain.KEPT_S / 2
    assert [row["id"] for row in traffic.ring.list()["slowest"]] == [fresh]
    traffic.now += explain.KEPT_S
    assert traffic.ring.list()["slowest"] == []
    assert traffic.ring.list()["recent"]


def test_steps_beyond_the_kept_ones_are_counted(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eaglegate.features.explanations.ring.TRACKED", 3)
    (choice,) = traffic.explain(traffic.answer(STEPS))["choices"]
    assert choice["steps"] == 4
    assert sum(run["steps"] for run in choice["runs"]) == 2


def test_a_refused_request_is_kept_by_its_request_id(traffic: Traffic) -> None:
    exchange = HttpExchange("given-id", "POST", "/v1/chat/completions", "", 1.0, 400)
    exchange.ended, exchange.refused = 1.25, "invalid_value"
    traffic.ring.complete(exchange)
    row = traffic.explain("given-id")
    assert (row["code"], row["wall_ms"], row["outcome"]) == ("invalid_value", 250.0, "refused")
    assert "invalid_value" in "\n".join(format_explanation(row))


async def test_another_client_s_request_id_explains_no_request_of_mine(traffic: Traffic) -> None:
    """It sends the id of an answer, or the ``x-request-id`` that I sent."""
    name = traffic.answer(STEPS)
    for request_id in (name, "http-1"):
        exchange = HttpExchange(request_id, "POST", "/v1/completions", "", 1.0, 400)
        exchange.ended, exchange.refused = 1.25, "spoofed"
        traffic.ring.complete(exchange)
    assert traffic.explain(name)["outcome"] == "completed"
    by_id, by_http = [answer.json() for answer in await traffic.get(f"/{name}", "/http-1")]
    assert by_id["same_request_id"] == []
    assert by_http["code"] == "spoofed"
    assert [row["id"] for row in by_http["same_request_id"]] == [name]
    text = "\n".join(format_explanation(by_http))
    assert "which clients choose" in text
    assert f"  {name}  1130 ms  completed" in text


async def test_the_endpoints_list_and_explain(traffic: Traffic) -> None:
    name = traffic.answer(STEPS)
    *answers, unknown = await traffic.get("", f"/{name}", "/http-1", "/nobody")
    listed, by_id, by_http = [answer.json() for answer in answers]
    assert [row["id"] for row in listed["recent"]] == [name]
    assert by_id == by_http and by_id["id"] == name
    assert unknown.status_code == 404
    assert "'nobody'" in unknown.json()["error"]["message"]
    assert f"{name}  1130 ms  completed" in "\n".join(format_lists(listed))


def test_the_text_names_every_part_that_took_time(traffic: Traffic) -> None:
    name = traffic.answer(STEPS, times=RequestTimes(rendering=0.2))
    text = "\n".join(format_explanation(traffic.explain(name, PLANNER)))
    assert "wall time 1130.0 ms" in text
    assert "rendering         200.0 ms  17.7%" in text
    assert "grammar" not in text
    assert "from token     4: depth 0 (off), 1 step, 1 token, 100.0 ms" in text
    assert "preempted 2 times" in text


def test_a_gateway_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "nobody"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
