"""/admin: the speculation policy, reloading, status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eaglegate.engine.supervision.policy import AppliedDepth, LossCause, create_loss
from eaglegate.server.apis.shared.gateway import Controls
from eaglegate.server.errors import ConfigError


@pytest.fixture
def controlled(lab):
    lab.bounds, lab.pending = [], False

    async def bound(depth):
        lab.bounds.append(depth)
        return AppliedDepth(depth, pending=lab.pending)

    async def reload():
        if lab.bounds == ["bad"]:
            raise ConfigError("--api-key-file keys.yaml: keys.0.name: missing")
        return {"keys": 2}

    lab.gateway.controls = Controls(reload, bound)
    return lab


def add_lookups(lab, width):
    pipeline = lab.gateway.require()
    speculation = replace(pipeline.info.speculation, lookup=width)
    info = replace(pipeline.info, speculation=speculation)
    lab.gateway.pipeline = replace(pipeline, info=info)


async def put(lab, **rules):
    return await lab.call("PUT", "/admin/speculation", rules)


async def test_rules_are_read_set_and_obeyed(controlled):
    before = (await controlled.get("/admin/speculation")).json
    assert before["flag"]["mode"] == "on"
    answer = await put(controlled, workload_flags={"tools": {"mode": "off"}}, depth=2)
    assert answer.status == 200
    assert (await controlled.get("/admin/speculation")).json == answer.json
    controlled.says("x")
    await controlled.chat()
    assert controlled.engine.requests[-1].depth == 2
    await put(controlled, flag={"mode": "off"})
    await controlled.chat(num_speculative_tokens=3)
    assert controlled.engine.requests[-1].depth == 0


@pytest.mark.parametrize("pending", [False, True])
async def test_the_bound_goes_to_the_engine(controlled, pending):
    """It may not have taken the bound yet."""
    controlled.pending = pending
    answer = (await put(controlled, bound=1)).json
    assert (answer["bound"], answer["bound_pending"]) == (1, pending)
    await put(controlled)
    assert controlled.bounds == [1]


async def test_status_tells_how_engines_were_lost(controlled):
    loss = create_loss(LossCause.DIED, "the engine process died", 12.34, None)
    controlled.gateway.losses = lambda: [loss]
    (told,) = (await controlled.get("/admin/status")).json["engine_losses"]
    assert (told["cause"], told["lived_s"], told["log"]) == ("died", 12.3, [])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rules", "param"),
    [
        ({"flag": {"mode": "maybe"}}, "flag.mode"),
        ({"flag": {"mode": "share", "share": 1.5}}, "flag.share"),
        ({"depth": 9}, "depth"),
        ({"depth": -1}, "depth"),
        ({"bound": 4}, "bound"),
        ({"workload_depths": {"poetry": 1}}, "workload_depths"),
        ({"workload_flags": {"poetry": {}}}, "workload_flags"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_rules_without_effect_are_refused_and_change_nothing(controlled, rules, param):
    before = (await controlled.get("/admin/speculation")).json
    answer = await put(controlled, **rules)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert (await controlled.get("/admin/speculation")).json == before
    assert not controlled.bounds


async def test_reload_tells_what_is_in_force_or_what_is_wrong(controlled):
    assert (await controlled.post("/admin/reload", b"")).json == {"keys": 2}
    controlled.bounds.append("bad")
    answer = await controlled.post("/admin/reload", b"")
    assert answer.status == 400
    assert "keys.0.name" in answer.json["error"]["message"]


async def test_status_counts(controlled):
    status = (await controlled.get("/admin/status")).json
    assert (status["state"], status["requests_inside"]) == ("ready", 0)
    assert status["bounds"]["running"] == 256
    assert status["tasks"] >= 1


class PretendPlanner:
    """Plans where ``plans`` says so."""

    def __init__(self, plans: bool = True) -> None:
        self.plans = plans
        self.frozen: int | None = None

    async def describe_planning(self, recent: int = 0) -> dict[str, object]:
        return {"mode": "auto", "frozen": self.frozen, "recent": [None] * recent}

    async def describe_slices(self) -> list[dict[str, object]]:
        return [{"tenant": "team-a"}]

    async def freeze_planning(self, depth: int | None) -> bool:
        self.frozen = depth
        return self.plans


def plan(lab, planner):
    lab.gateway.controls = replace(lab.gateway.controls, planner=planner)
    return planner


async def test_the_planner_is_shown_and_held(controlled):
    planner = plan(controlled, PretendPlanner())
    assert (await put(controlled, planner=2)).json["planner"] == 2
    shown = (await controlled.get("/admin/speculation")).json["planner"]
    slices = [{"tenant": "team-a"}]
    assert shown == {"mode": "auto", "frozen": 2, "recent": [], "slices": slices}
    assert (await put(controlled)).status == 200
    assert planner.frozen == 2, "a set of rules that does not name it leaves it"
    assert (await put(controlled, planner="auto")).json["planner"] == "auto"
    assert planner.frozen is None


@pytest.mark.parametrize("plans", [False, None])
async def test_without_a_planner_none_can_be_held(controlled, plans):
    plan(controlled, None if plans is None else PretendPlanner(plans))
    answer = await put(controlled, planner=1)
    assert answer.status == 400
    assert "--depth auto" in answer.json["error"]["message"]


async def test_a_held_depth_is_at_most_the_engines(controlled):
    plan(controlled, PretendPlanner())
    answer = await put(controlled, planner=99)
    assert answer.status == 400
    assert answer.json["error"]["param"] == "planner"


async def test_a_change_that_is_refused_changes_nothing(controlled):
    plan(controlled, PretendPlanner(plans=False))
    before = (await controlled.get("/admin/speculation")).json
    assert (await put(controlled, planner=1, bound=1, depth=2)).status == 400
    assert controlled.bounds == []
    after = (await controlled.get("/admin/speculation")).json
    assert {**after, "planner": None} == {**before, "planner": None}


@pytest.mark.parametrize("rules", [{"depth": 1}, {"workload_depths": {"tools": 0}}])
async def test_depths_that_the_workers_do_not_honour_are_refused(controlled, rules):
    controlled.change_model(depth_per_request=False)
    answer = await put(controlled, **rules)
    assert answer.status == 400
    assert "--scheduler-cls eaglegate.engine.Scheduler" in answer.json["error"]["message"]
    assert (await put(controlled, depth=controlled.depth)).status == 200


@pytest.mark.parametrize("width", [0, 5, 8])
async def test_lookups_are_bounded_by_a_rule(controlled, width):
    add_lookups(controlled, 8)
    assert (await controlled.get("/admin/speculation")).json["lookup"] is None
    answer = await put(controlled, lookup=width)
    assert (answer.status, answer.json["lookup"]) == (200, width)
    assert (await controlled.get("/admin/speculation")).json == answer.json
    controlled.says("x")
    await controlled.chat()
    assert controlled.engine.requests[-1].lookup == width
    assert (await put(controlled)).json["lookup"] is None
    await controlled.chat()
    assert controlled.engine.requests[-1].lookup is None


@pytest.mark.parametrize(
    ("engine_width", "width", "message"),
    [
        (8, 9, "'lookup' must be at most the engine's longest lookup, 8; given 9."),
        (8, -1, "'lookup': Input should be greater than or equal to 0; given -1."),
        (0, 4, "the engine has no lookups. Start the gateway with --lookup N."),
        (0, 0, "'lookup' cannot be set here: the engine has no lookups."),
    ],
)
async def test_lookups_that_the_engine_does_not_have_are_refused(
    controlled, engine_width, width, message
):
    add_lookups(controlled, engine_width)
    answer = await put(controlled, lookup=width)
    assert (answer.status, answer.json["error"]["param"]) == (400, "lookup")
    assert message in answer.json["error"]["message"]
    assert (await controlled.get("/admin/speculation")).json["lookup"] is None
