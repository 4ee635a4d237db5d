"""``eaglegate serve SPECULATOR``: a draft in the speculators format in the place of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.conftest import ADMIN, RunningGateway, serving
from tests.engine.speculation.draft_changes import speculators
from tests.engine.speculation.draft_folder import DEMO, read_folder

pytestmark = pytest.mark.slow
MESSAGES = [{"role": "user", "content": "What is speculative decoding?"}]


def write_speculator(where: Path) -> Path:
    """The demo's EAGLE 3.1 draft in the speculators format, which names the demo's target."""
    draft = read_folder(DEMO / "eagle3_1")
    speculators()(draft)
    draft.config["speculators_config"]["verifier"]["name_or_path"] = str(DEMO / "target")
    draft.write(where)
    return where


@pytest.fixture(scope="module")
def speculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speculator(tmp_path_factory.mktemp("speculator") / "draft")


@pytest.fixture(scope="module")
def gateway(speculator: Path) -> Iterator[RunningGateway]:
    flags = (str(speculator), "--spec-tokens=2", "--require-lossless", *ADMIN)
    with serving(speculator.parent / "serve.log", flags) as running:
        yield running


def test_a_speculator_is_inspected_planned_and_described(gateway: RunningGateway, speculator: Path):
    assert "EAGLE 3.1: fc_norm x3, norm_output, speculators format" in gateway.banner
    assert "K=2" in gateway.banner
    assert "depth        auto" in gateway.banner
    [engine] = httpx.get(f"{gateway.operator}/debug/speculation").json()["engines"].values()
    assert (engine["method"], engine["depth"], engine["lossy"]) == ("eagle3.1", 2, [])
    assert str(speculator) in httpx.get(f"{gateway.operator}/admin/draft").text


def test_its_drafts_are_accounted_for_under_the_name_of_either(
    gateway: RunningGateway, speculator: Path
):
    client = OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    assert {model.id for model in client.models.list()} == {str(speculator), str(DEMO / "target")}
    texts = {
        client.chat.completions.create(
            model=model.id, messages=MESSAGES, temperature=0, max_tokens=60
        )
        .choices[0]
        .message.content
        for model in client.models.list()
    }
    assert len(texts) == 1 and texts != {""}
    accepted = gateway.metric("eaglegate_accepted_tokens_total")
    assert accepted is not None and accepted > 0
    assert gateway.metric("eaglegate_engine_lossy") == 0
