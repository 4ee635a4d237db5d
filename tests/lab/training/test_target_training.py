"""The target's own parts: the wired circuit, the training loop, the checkpoint, the scaled copy."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree

import pytest
import torch
from transformers import AutoModelForCausalLM

from eaglegate.lab.training.checkpoint import load_llama, save_target
from eaglegate.lab.training.corpus import (
    CLOSE,
    DENSE,
    LAST,
    sample_texts,
    short_documents,
)
from eaglegate.lab.training.cost_scaled import cost_scaled_demo
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.induction import wire
from eaglegate.lab.training.llama import EXPLICIT_UP_TO, Llama, LlamaShape, Rope, causal_attention
from eaglegate.lab.training.muon import orthogonalise
from eaglegate.lab.training.tokenizer import train_tokenizer
from eaglegate.lab.training.train_target import Recipe, run

pytestmark = pytest.mark.thorough

SMALL = LlamaShape(num_hidden_layers=2, intermediate_size=64)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(sample_texts(11, 300)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def fast(tokenizer):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer / "tokenizer.json"))


@torch.no_grad()
def test_the_wired_model_copies_before_any_training(fast):
    torch.manual_seed(0)
    model = Llama(LlamaShape())
    text = "parcel Bairiyu naming grouskil attempted zipfile xabrola EAQ advance"
    copied = fast.encode(text, add_special_tokens=False).ids
    ids = torch.tensor([fast.encode(f"Repeat: {text}\nassistant\n{text}").ids])
    rope = Rope.table(ids.shape[1], 64, model.shape.rope_theta)

    def share():
        guesses = model.lm_head(model(ids, rope))[0].argmax(-1)
        hits = guesses[:-1] == ids[0, 1:]
        return float(hits[-len(copied) + 2 :].float().mean())

    before = share()
    wire(model)
    assert before < 0.1
    assert share() > 0.6


def write_data(folder, fast):
    """Write the sets that a recipe reads, all of short documents: long ones take a minute."""
    folder.mkdir(parents=True)
    short_documents(fast, Source(1), 60, 0.2).save(folder / "short.npz")
    short_documents(fast, Source(2), 20, 0.2).save(folder / "long.npz")
    short_documents(fast, Source(3), 20, 0.2, DENSE).save(folder / "dense.npz")
    short_documents(fast, Source(4), 20, 0.2, LAST).save(folder / "last.npz")
    short_documents(fast, Source(5), 20, 0.2, CLOSE).save(folder / "close.npz")
    short_documents(fast, Source(6), 20, 0.2, CLOSE).save(folder / "far.npz")
    return folder


@pytest.mark.timeout(600)
def test_training_learns_and_goes_on_where_it_stopped(tmp_path, fast, capsys):
    data = write_data(tmp_path / "whole" / "data", fast)
    copytree(data, tmp_path / "parts" / "data")
    recipe = Recipe(
        steps=12,
        batch_tokens=600,
        long_from=9,
        long_share=0.9,
        dense_from=11 / 12,
        last_steps=2,
        close_steps=2,
        warmup=3,
    )
    torch.set_num_threads(1)
    whole = run(recipe, SMALL, tmp_path / "whole")
    run(recipe, SMALL, tmp_path / "parts", stop_at=10)
    parts = run(recipe, SMALL, tmp_path / "parts")
    assert parts.step == 16
    pairs = zip(whole.model.parameters(), parts.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    first, last = (float(line.split("short ")[1].split(",")[0]) for line in progress(capsys))
    assert last < first - 0.2


def progress(capsys):
    """The first two progress lines: after five steps and at the end."""
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("step")][:2]


def test_every_step_knows_what_it_reads():
    recipe = Recipe(steps=1000, long_from=100, late_from=0.4, dense_from=0.6)
    drawn = [recipe.kind(step) for step in range(1000)]
    assert drawn == [recipe.kind(step) for step in range(1000)]
    assert set(drawn[:100]) == {"short"}
    assert set(drawn[100:600]) == {"short", "long"}
    assert set(drawn[600:]) == {"dense", "long"}
    assert 0.1 < drawn[400:600].count("long") / 200 < 0.35
    closing = 1000 + recipe.last_steps
    assert {recipe.kind(step) for step in range(1000, closing)} == {"last", "long"}
    assert {recipe.kind(step) for step in range(closing, recipe.end)} == {"close", "far"}


def test_the_rate_warms_up_stays_and_falls():
    recipe = replace(Recipe(steps=100, last_steps=50), warmup=10, decay_from=0.5)
    assert recipe.scale(0) == pytest.approx(0.1)
    assert recipe.scale(20) == recipe.scale(49) == 1.0
    assert recipe.scale(75) == pytest.approx(0.5)
    assert recipe.scale(99) >= recipe.final
    assert recipe.scale(100) == recipe.last_scale > recipe.scale(149) > 0
    assert recipe.scale(150) == pytest.approx(recipe.close_scale / 10)
    assert recipe.close_scale > recipe.scale(160) > recipe.scale(recipe.end - 1) > 0


@torch.no_grad()
def test_checkpoint_computes_what_transformers_computes(tmp_path, tokenizer):
    torch.manual_seed(0)
    model = Llama(SMALL)
    wire(model)
    save_target(model, tokenizer, tmp_path / "target", dtype=torch.float32)
    ids = torch.randint(4, 2000, (1, 40))
    rope = Rope.table(40, 64, SMALL.rope_theta)
    ours = model.lm_head(model(ids, rope))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32)
    assert torch.allclose(ours, theirs(ids).logits, atol=1e-4)


@torch.no_grad()
def test_cost_scaled_target_is_the_same_function(tmp_path, tokenizer):
    torch.manual_seed(0)
    model = Llama(SMALL)
    save_target(model, tokenizer, tmp_path / "target", dtype=torch.float32)
    draft = tmp_path / "eagle3_1"
    draft.mkdir()
    (draft / "config.json").write_text('{"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}')
    (draft / "model.safetensors").write_bytes(b"")
    cost_scaled_demo(tmp_path / "target", [draft], 4, tmp_path / "scaled", torch.float32)
    scaled = load_llama(tmp_path / "scaled" / "target")
    assert scaled.shape.num_hidden_layers == 6
    ids, rope = torch.randint(4, 2000, (1, 30)), Rope.table(30, 64, SMALL.rope_theta)
    assert torch.equal(model(ids, rope), scaled(ids, rope))
    config = json.loads((tmp_path / "scaled" / "eagle3_1" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 3, 6]
    assert "cost_scaled" in json.loads((tmp_path / "scaled" / "target" / "config.json").read_text())


def test_identity_layers_are_spread_evenly_or_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="3 identity layers"):
        save_target(Llama(SMALL), tokenizer, tmp_path, identity_layers=3)


def test_both_attentions_agree():
    q, k, v = torch.randn(3, 1, 2, EXPLICIT_UP_TO, 8).unbind(0)
    explicit = causal_attention(q, k, v)
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(explicit, fused, atol=1e-5)


def test_muon_pushes_singular_values_towards_one():
    values = torch.linalg.svdvals(orthogonalise(torch.randn(2, 24, 16)))
    assert values.min() > 0.4 and values.max() < 1.6
