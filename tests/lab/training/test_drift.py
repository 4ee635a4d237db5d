"""Drift figures on a tiny random pair: what must hold for any weights."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eaglegate.lab.training.checkpoint import save_draft
from eaglegate.lab.training.corpus import sample_texts
from eaglegate.lab.training.drift import GreedyWalk, main
from eaglegate.lab.training.eagle import Draft
from eaglegate.lab.training.target import TargetModel
from eaglegate.lab.training.tokenizer import train_tokenizer

pytest.importorskip("matplotlib", reason="the figure needs the `train` extra")
DEPTHS = 4


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "target")
    train_tokenizer(sample_texts(11, 100)).save_pretrained(folder / "target")
    target = TargetModel.load(folder / "target")
    command = ["--target", folder / "target", "--out", folder, "--depths", DEPTHS]
    for method in ("eagle3", "eagle3.1"):
        save_draft(Draft(target.draft_shape(method), 1), folder / method, dtype=torch.float32)
        command += ["--draft", f"{method}={folder / method}"]
    row = {"set": "plain", "prompt_ids": list(range(9)), "answer_ids": list(range(10, 30))}
    short = {"set": "plain", "prompt_ids": [1], "answer_ids": [2, 3, 4]}
    data = folder / "answers.jsonl"
    data.write_text(f"{json.dumps(row)}\n{json.dumps(short)}\n")
    main([str(item) for item in [*command, "--data", data, "--sets", "plain"]])
    assert (folder / "drift.png").stat().st_size > 1000
    assert "### plain (16 positions)" in (folder / "drift.md").read_text()
    return json.loads((folder / "drift.json").read_text())


@pytest.mark.parametrize("method", ["eagle3", "eagle3.1"])
def test_attention_sums_to_one_at_every_depth(curves, method):
    found = curves[method]["plain"]
    parts = ["sink", "prompt", "answer", "own tokens"]
    for depth in range(DEPTHS):
        total = sum(found[f"attention on {part}"][depth] for part in parts)
        assert total == pytest.approx(1.0, abs=1e-3)
    assert found["attention on own tokens"][0] == 0.0 < found["attention on own tokens"][1]


def test_a_normed_state_keeps_its_size_and_a_residual_one_does_not(curves):
    stable = curves["eagle3.1"]["plain"]["fed-back norm"]
    free = curves["eagle3"]["plain"]["fed-back norm"]
    assert max(stable) / min(stable) < 1.01
    assert max(free) / min(free) > 1.1


def test_acceptance_falls_with_depth(curves):
    for found in curves.values():
        accepted = found["plain"]["accepted"]
        assert accepted == sorted(accepted, reverse=True)
        assert all(0 <= share <= 1 for share in found["plain"]["conditional acceptance"])


def test_a_walk_replays_decoding():
    """Three right, then the fourth position starts the next step, and so on."""
    walk = GreedyWalk()
    walk.add([5, 0, 0, 0, 1, 0, 2, 1, 0], 3)
    assert (walk.steps, walk.accepted) == (3, 6)
    assert walk.length == 3.0
