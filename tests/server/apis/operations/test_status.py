"""Models, health, readiness, and paths that do not exist."""

from __future__ import annotations

import pytest

from eaglegate import __version__

pytestmark = pytest.mark.thorough


async def test_models(lab):
    listed = (await lab.get("/v1/models")).json
    assert [card["id"] for card in listed["data"]] == ["demo", "alias"]
    one = (await lab.get("/v1/models/demo")).json
    assert (one["id"], one["object"], one["max_model_len"]) == ("demo", "model", 256)
    assert one["input_modalities"] == ["text"]


async def test_ready_follows_the_engine(lab):
    answer = await lab.get("/ready")
    assert answer.status == 200
    engine = answer.json["engine"]
    assert (engine["num_speculative_tokens"], engine["lookup"]) == (3, 0)
    lab.engine.dead = "the process died"
    answer = await lab.get("/ready")
    assert (answer.status, answer.json["reason"]) == (503, "the process died")
    assert (await lab.get("/health")).status == 200


async def test_not_ready_before_the_engine_is(lab):
    lab.gateway.pipeline = None
    lab.gateway.state = "starting"
    assert (await lab.get("/ready")).status == 503
    assert (await lab.get("/health")).status == 200
    assert (await lab.get("/v1/models")).status == 200


async def test_version_is_that_of_the_package(lab):
    assert (await lab.get("/version")).json == {"version": __version__}
