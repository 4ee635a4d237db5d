"""The demo in the shape of a larger Llama computes the demo's function."""

from __future__ import annotations

import json

import torch
from transformers import AutoModelForCausalLM

from eaglegate.lab.training.large_shape import DEMO, LargeShape, write_large_demo

SHAPE = LargeShape(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    dtype=torch.float32,
    device="cpu",
)


@torch.no_grad()
def test_large_target_has_the_logits_of_the_demo(tmp_path):
    write_large_demo(SHAPE, tmp_path)
    small = AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    large = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32)
    assert large.config.num_hidden_layers == 16
    assert large.config.head_dim == 128
    ids = torch.randint(4, 2000, (2, 40), generator=torch.Generator().manual_seed(1))
    expected, actual = small(ids).logits, large(ids).logits
    # The noise in closed matrices moves every logit a little.
    assert (expected - actual).abs().mean() < 0.02 * expected.std()
    assert (expected.argmax(-1) == actual.argmax(-1)).float().mean() > 0.95


def test_large_draft_reads_the_layers_that_the_small_draft_reads(tmp_path):
    write_large_demo(SHAPE, tmp_path)
    config = json.loads((tmp_path / "eagle3_1" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [4, 8, 10]
    assert config["fc_norm"] is True
