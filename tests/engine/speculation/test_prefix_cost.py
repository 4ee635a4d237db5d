"""The rule that says what a draft costs the prefix cache."""

from __future__ import annotations

from typing import Any

import pytest

from eaglegate.engine import vllm_contract
from eaglegate.engine.speculation.accounts.prefix_cost import PrefixCost, find_prefix_cost

FULL = {"model_type": "llama"}
SLIDING = {
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 128,
}
RECURRENT = {"layer_types": ["linear_attention", "full_attention"]}


def find_cost(*given: Any, **more: Any) -> PrefixCost:
    cost = find_prefix_cost(*given, **more)
    assert cost is not None
    return cost


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "dflash", "dspark"])
def test_drafts_that_read_hidden_states_cost_a_block(method: str) -> None:
    cost = find_cost({"method": method}, FULL, 16)
    assert cost.explain() == (
        "the draft drops the last block of 16 tokens of every hit; prompts need 33 tokens or more "
        "for a hit"
    )


@pytest.mark.parametrize(
    ("settings", "connected", "words"),
    [
        ({"method": "eagle3"}, False, "no block of a hit: block hashes look ahead"),
        ({"method": "mtp"}, False, "no block of a hit: block hashes look ahead"),
        ({"method": "dflash"}, False, "the draft drops no block of a hit"),
        ({"method": "eagle3", "disable_eagle_block_drop": True}, False, "no block of a hit"),
        ({"method": "eagle3", "disable_lookahead_block_hashes": True}, False, "the last block"),
        ({"method": "eagle3"}, True, "the last block"),
        ({"method": "dspark"}, True, "the draft drops no block of a hit"),
    ],
)
def test_hashes_of_vllm_033_look_ahead(
    settings: dict[str, object], connected: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_contract, "find_vllm", lambda: ("vllm", "0.33.1+cu130"))
    cost = find_cost(settings, FULL, 16, has_connector=connected)
    assert words in cost.explain()


@pytest.mark.parametrize("method", ["ngram", "suffix", "medusa", "draft_model", "custom_class"])
def test_the_others_cost_nothing(method: str) -> None:
    cost = find_cost({"method": method}, FULL, 16)
    assert cost.explain() == "the draft drops no block of a hit"


def test_without_a_draft_there_is_no_cost() -> None:
    assert find_prefix_cost(None, FULL, 16) is None


def test_vllm_can_be_told_to_keep_the_block() -> None:
    given = {"method": "eagle3", "disable_eagle_block_drop": True}
    cost = find_cost(given, FULL, 16)
    assert not cost.drops


def test_windows_need_one_more_block_in_a_row() -> None:
    cost = find_cost({"method": "eagle3"}, SLIDING, 16)
    assert "window of 128 tokens need 9 cached blocks in a row instead of 8" in cost.explain()
    unused = SLIDING | {"use_sliding_window": False}
    cost = find_cost({"method": "eagle3"}, unused, 16)
    assert cost.window is None


def test_recurrent_layers_raise_the_block_size() -> None:
    cost = find_cost({"method": "mtp"}, RECURRENT, None)
    assert cost.recurrent
    assert cost.explain() == (
        "the draft drops the last block of every hit; vLLM raises the block size of models with "
        "recurrent layers at the start, often to 1,600 tokens or more"
    )


def test_the_method_that_the_checkpoint_shows_counts() -> None:
    cost = find_cost({"model": "draft"}, FULL, 128, "eagle3")
    assert (cost.block_size, cost.drops) == (128, True)
