"""One speculative_config, however a command line names the draft."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.machine import inspect_machine
from eaglegate.engine.preflight import make_plan, preflight
from eaglegate.engine.speculation.drafts.naming import name_speculation
from tests.engine.speculation.speculators_cases import described, make_draft

TARGET = "engine/demo/target"


def write(base: str, where: Path, *changes: Any) -> str:
    draft = make_draft(base)
    for change in changes:
        change(draft)
    draft.write(where / "draft")
    return str(where / "draft")


def test_short_flags_make_the_config():
    chosen = name_speculation({"model": "m", "spec_method": "eagle3", "spec_tokens": 4})
    expected = {"method": "eagle3", "num_speculative_tokens": 4}
    assert chosen == {"model": "m", "speculative_config": expected}


def test_short_flags_and_the_config_add_up():
    given = {"speculative_config": {"num-speculative-tokens": 2}, "spec_model": "d"}
    assert name_speculation(given)["speculative_config"] == {
        "num_speculative_tokens": 2,
        "model": "d",
    }


def test_the_same_setting_twice_is_refused():
    given = {"speculative_config": {"num_speculative_tokens": 2}, "spec_tokens": 3}
    with pytest.raises(
        EngineStartError, match=r"--spec-tokens 3 and 'num_speculative_tokens' .* \(2\)"
    ):
        name_speculation(given)


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        ("eagle3", {"method": "eagle3", "num_speculative_tokens": 3}),
        (
            "peagle",
            {"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 4},
        ),
        ("dflash", {"method": "dflash", "num_speculative_tokens": 7}),
        ("dflash2", {"method": "dflash", "num_speculative_tokens": 7}),
        ("dspark", {"method": "dspark", "num_speculative_tokens": 8}),
    ],
)
def test_a_speculator_as_the_model_names_its_target(
    base: str, settings: dict[str, Any], tmp_path: Path
):
    draft = write(base, tmp_path)
    chosen = name_speculation({"model": draft})
    assert chosen["model"] == TARGET
    assert chosen["speculative_config"] == {"model": draft, **settings}
    assert chosen["served_model_name"] == [draft, TARGET]


def test_the_users_choice_counts_more_than_the_proposal(tmp_path: Path):
    draft = write("eagle3", tmp_path)
    named = {"model": draft, "spec_tokens": 5, "served_model_name": ["mine"], "revision": "r1"}
    chosen = name_speculation(named | {"speculative_config": {"draft_sample_method": "greedy"}})
    assert chosen["speculative_config"] == {
        "model": draft,
        "method": "eagle3",
        "num_speculative_tokens": 5,
        "draft_sample_method": "greedy",
        "revision": "r1",
    }
    assert (chosen["served_model_name"], chosen["revision"]) == (["mine"], None)


def test_a_method_that_the_draft_is_not_made_for_is_refused(tmp_path: Path):
    draft = write("dflash", tmp_path)
    with pytest.raises(EngineStartError, match="fixes method to 'dflash'; given 'eagle3'"):
        name_speculation({"model": draft, "spec_method": "eagle3"})


def test_a_speculator_without_a_target_says_how_to_name_it(tmp_path: Path):
    draft = write("peagle", tmp_path, described(verifier={"name_or_path": None}))
    with pytest.raises(EngineStartError, match=r'serve TARGET.*"parallel_drafting": true'):
        name_speculation({"model": draft})


def inspect_line(**given: Any) -> list[str]:
    plan = make_plan(argparse.Namespace(**given))
    return list(preflight(plan, inspect_machine()).obstacles)


def test_a_target_of_another_machine_is_told_apart(tmp_path: Path):
    draft = write("eagle3", tmp_path, described(verifier={"name_or_path": "/nowhere/target"}))
    [obstacle] = (one for one in inspect_line(model=draft) if "the target that the draft" in one)
    assert "eaglegate serve TARGET" in obstacle


def test_a_speculator_as_the_model_is_inspected(tmp_path: Path):
    draft = write("xpress", tmp_path)
    assert any("'xpress'" in obstacle for obstacle in inspect_line(model=draft))


def test_any_other_model_stays_as_it_is(tmp_path: Path):
    chosen = {"model": TARGET, "speculative_config": {"method": "ngram"}, "revision": "r"}
    assert name_speculation(chosen) == chosen
