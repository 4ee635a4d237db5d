"""The target's own parts: the wired circuit, the training loop, the checkpoint, the scaled copy."""

from __future__ import annotations

import json
from shutil import copytree

import pytest
import torch
from transformers import AutoModelForCausalLM

from eaglegate.lab.training.checkpoint import save_target
from eaglegate.lab.training.corpus import CLOSE, DENSE, LAST, SHORT, make_short, sample_texts
from eaglegate.lab.training.cost_scaled import DEMO, cost_scaled_demo
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.induction import wire
from eaglegate.lab.training.llama import Llama, LlamaShape, Rope
from eaglegate.lab.training.optimiser import RateStage, orthogonalise
from eaglegate.lab.training.tokenizer import train_tokenizer
from eaglegate.lab.training.train_target import DataStage, Recipe, run

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
    shapes = {"short": SHORT, "long": SHORT, "dense": DENSE, "last": LAST, "close": CLOSE}
    for number, (name, shape) in enumerate({**shapes, "far": CLOSE}.items()):
        count = 60 if name == "short" else 20
        make_short(fast, Source(number + 1), count, 0.2, shape).save(folder / f"{name}.npz")
    return folder


@pytest.mark.timeout(600)
def test_training_learns_and_goes_on_where_it_stopped(tmp_path, fast, capsys):
    data = write_data(tmp_path / "whole" / "data", fast)
    copytree(data, tmp_path / "parts" / "data")
    recipe = Recipe(
        (RateStage(12, warmup=3, decay_from=0.5, final=0.01), RateStage(4, scale=0.5)),
        (DataStage(0, "short"), DataStage(9, "short", "long", 0.9), DataStage(12, "close")),
        batch_tokens=600,
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
    recipe = Recipe()
    kinds = [recipe.kind(step) for step in range(recipe.end)]
    assert kinds[:200] == [recipe.kind(step) for step in range(200)]
    ends = [*(stage.first_step for stage in recipe.data[1:]), recipe.end]
    for stage, end in zip(recipe.data, ends, strict=True):
        part = kinds[stage.first_step : end]
        assert set(part) == {stage.short, stage.long} - {""}
        assert part.count(stage.long) / len(part) == pytest.approx(stage.long_share, abs=0.05)


def test_the_rate_warms_up_stays_and_falls():
    recipe = Recipe((RateStage(100, 1.0, 10, 0.5, 0.01), RateStage(50, 0.4), RateStage(20, 0.3, 4)))
    assert recipe.scale(0) == pytest.approx(0.1)
    assert recipe.scale(20) == recipe.scale(49) == 1.0
    assert recipe.scale(75) == pytest.approx(0.5)
    assert recipe.scale(99) == pytest.approx(0.02)
    assert recipe.scale(100) == 0.4 > recipe.scale(149) > 0
    assert recipe.scale(150) == pytest.approx(0.3 / 4)
    assert recipe.scale(153) > recipe.scale(169) > 0


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
    ids = torch.randint(4, 2000, (1, 30))
    plain, scaled = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        for name in ("target", "scaled/target")
    )
    assert scaled.config.num_hidden_layers == 6
    assert torch.equal(plain(ids).logits, scaled(ids).logits)
    config = json.loads((tmp_path / "scaled" / "eagle3_1" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 3, 6]
    assert "cost_scaled" in json.loads((tmp_path / "scaled" / "target" / "config.json").read_text())


def test_identity_layers_are_spread_evenly_or_refused(tmp_path):
    with pytest.raises(ValueError, match="3 identity layers"):
        cost_scaled_demo(DEMO / "target", [], 3, tmp_path)


def test_muon_pushes_singular_values_towards_one():
    values = torch.linalg.svdvals(orthogonalise(torch.randn(2, 24, 16)))
    assert values.min() > 0.4 and values.max() < 1.6
