"""Draft training at small scale on a tiny random target: it learns, resumes, and loads."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from cryptography.fernet import Fernet
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from eaglegate.engine.speculation.drafts.files import DraftPlan
from eaglegate.engine.speculation.drafts.inspection import inspect_draft
from eaglegate.lab.training import draft_training
from eaglegate.lab.training.batches import batches
from eaglegate.lab.training.checkpoint import load_draft
from eaglegate.lab.training.corpus import sample_texts
from eaglegate.lab.training.draft_cli import main
from eaglegate.lab.training.draft_data import BadData, load_exchanges
from eaglegate.lab.training.draft_training import (
    DraftRecipe,
    DraftTraining,
    InitialDraft,
)
from eaglegate.lab.training.eagle import known_tokens, own_tokens, unroll
from eaglegate.lab.training.target import TargetModel
from eaglegate.lab.training.tokenizer import train_tokenizer
from eaglegate.observability.captures.files import (
    make_cipher,
    read_keys,
    read_records,
    write_records,
)
from eaglegate.observability.captures.record import CapturedChoice, CapturedPrompt, CaptureRecord

pytestmark = pytest.mark.thorough

VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 3,
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(sample_texts(11, 200))


def make_target(folder, tokenizer, kind="llama", **changes):
    torch.manual_seed(0)
    config_of, model_of = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[kind]
    model_of(config_of(**{**SIZES, **changes})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_exchanges(path, count=24):
    """Answers that count upwards, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1)
    with path.open("w") as out:
        for _ in range(count):
            first = int(torch.randint(4, 20, (), generator=generator))
            row = {
                "prompt_ids": [1, first, 2],
                "answer_ids": [*range(first, first + 16), 3],
            }
            out.write(json.dumps(row) + "\n")
    return path


def write_countdowns(path, count=24):
    """Answers that count downwards, as a capture of served requests."""
    generator = torch.Generator().manual_seed(2)
    records = []
    for number in range(count):
        first = int(torch.randint(44, 60, (), generator=generator))
        answer = (*range(first, first - 16, -1), 3)
        choice = CapturedChoice(tokens=len(answer), token_ids=answer, finish="stop")
        prompt = CapturedPrompt(3, token_ids=(1, first, 2))
        records.append(
            CaptureRecord(id=str(number), input_length=3, prompts=(prompt,), choices=(choice,))
        )
    write_records(path, records)
    return path


def measure(target, draft, data):
    """The draft's loss on ``data``, and the share of first guesses that are the target's own
    choice."""
    loaded = TargetModel.load(target)
    head, kept = load_draft(draft, loaded.draft_shape("eagle3.1"))
    start = InitialDraft(draft, head, kept)
    recipe = DraftRecipe(depths=3)
    training = DraftTraining(loaded, head.shape, recipe, kept, "cpu", start)
    corpus = load_exchanges(data, None, 128)
    with torch.no_grad():
        ids, weights = corpus.batch(np.arange(len(corpus.lengths)))
        loss, hits = training.loss(ids, weights > 0)
    return float(loss), hits[0]


def test_a_draft_is_tuned_on_a_capture_and_keeps_the_old_data_in_mind(tmp_path, tokenizer):
    target = make_target(tmp_path / "target", tokenizer)
    old = write_exchanges(tmp_path / "old.jsonl")
    new = write_countdowns(tmp_path / "capture.jsonl")
    assert train(target, old, tmp_path / "draft", "--steps", 60) == 0
    tune = ("--init", tmp_path / "draft", "--steps", 40)
    assert train(target, new, tmp_path / "tuned", *tune) == 0
    assert train(target, new, tmp_path / "both", *tune, "--keep", old, "--nice", 1) == 0
    loss = {
        name: (measure(target, tmp_path / name, old)[0], measure(target, tmp_path / name, new)[0])
        for name in ("draft", "tuned", "both")
    }
    assert loss["tuned"][1] < loss["draft"][1], "it learns the new data"
    assert loss["both"][1] < loss["draft"][1]
    assert loss["both"][0] < loss["tuned"][0], "with the old data it forgets less"
    configs = [(tmp_path / name / "config.json").read_text() for name in ("draft", "both")]
    assert configs[0] == configs[1]
    plan = DraftPlan(str(target), {"method": "eagle3", "num_speculative_tokens": 3})
    plan.check(str(tmp_path / "both"), str(tmp_path / "draft"))


def test_an_encrypted_capture_is_read_with_its_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(Fernet.generate_key().decode())
    plain = write_countdowns(tmp_path / "plain.jsonl")
    secret = tmp_path / "capture.jsonl"
    write_records(secret, read_records(plain), make_cipher(read_keys(keys)))
    assert len(load_exchanges(secret, None, 128, keys).lengths) == 24
    with pytest.raises(BadData, match="give its key with --key-file"):
        load_exchanges(secret, None, 128)


def train(target, data, out, *more):
    command = ["--target", target, "--data", data, "--out", out, "--batch-tokens", 200]
    command += ["--depths", 3, "--threads", 1, "--device", "cpu", *more]
    return main([str(item) for item in command])


@pytest.mark.parametrize(("kind", "method"), [("llama", "eagle3.1"), ("qwen3", "eagle3")])
def test_training_agrees_more_and_more_and_the_checkpoint_loads(
    tmp_path, tokenizer, kind, method, capsys
):
    target = make_target(tmp_path / "target", tokenizer, kind)
    data = write_exchanges(tmp_path / "data.jsonl")
    assert train(target, data, tmp_path / "draft", "--method", method, "--steps", 50) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "accuracy" in line]
    shares = [[float(item) for item in line.split("depth ")[1].split()] for line in lines]
    assert len(shares) == 2 and shares[1][0] > shares[0][0]
    shape = TargetModel.load(target).draft_shape(method)
    draft, found = load_draft(tmp_path / "draft", shape)
    assert draft.shape == shape and found is None
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config.get("norm_output", False) is (method == "eagle3.1")
    report = inspect(target, tmp_path / "draft")
    assert report.method == method and not report.findings


def inspect(target, draft):
    settings = {"model": str(draft), "method": "eagle3", "num_speculative_tokens": 3}
    return inspect_draft(target, settings)


def test_training_goes_on_where_it_stopped(tmp_path, tokenizer, monkeypatch):
    """Killed on the way and started again: the same weights as in one go."""
    target = make_target(tmp_path / "target", tokenizer)
    data = write_exchanges(tmp_path / "data.jsonl")
    train(target, data, tmp_path / "whole", "--steps", 20)

    def interrupted(*args, **kwargs):
        yield from itertools.islice(batches(*args, **kwargs), 9)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(draft_training, "batches", interrupted)
        patched.setattr(draft_training.time, "monotonic", itertools.count(step=1000).__next__)
        train(target, data, tmp_path / "parts", "--steps", 20)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    train(target, data, tmp_path / "parts", "--steps", 20)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_reduced_vocabulary_maps_to_the_target_by_offsets(tmp_path, tokenizer):
    target = make_target(tmp_path / "target", tokenizer)
    data = write_exchanges(tmp_path / "data.jsonl")
    assert train(target, data, tmp_path / "draft", "--steps", 2, "--draft-vocab", 24) == 0
    draft, found = load_draft(tmp_path / "draft", TargetModel.load(target).draft_shape("eagle3.1"))
    assert draft.lm_head.weight.shape[0] == 24
    assert found is not None and found.tolist() == sorted(set(found.tolist()))
    assert 3 in found, "the end of a turn is frequent"
    assert not inspect(target, tmp_path / "draft").errors


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 3}, "at least 4"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "RoPE"),
    ],
)
def test_an_unfit_target_is_refused(tmp_path, tokenizer, capsys, changes, says):
    target = make_target(tmp_path / "target", tokenizer, **changes)
    data = write_exchanges(tmp_path / "data.jsonl", 2)
    assert train(target, data, tmp_path / "draft") == 2
    assert says in capsys.readouterr().err


@torch.no_grad()
def test_one_row_at_a_time_gives_the_same_as_all_rows_at_once(tmp_path, tokenizer):
    """Rows do not see one another: the batch unroll equals serving."""
    target = TargetModel.load(make_target(tmp_path / "target", tokenizer))
    shape = target.draft_shape("eagle3.1")
    from eaglegate.lab.training.eagle import Draft

    draft = Draft(shape, 1)
    ids = torch.randint(0, VOCABULARY, (1, 20), generator=torch.Generator().manual_seed(2))
    states, _ = target.states(ids, shape.layers_read)
    rope = target.rope(shape)

    def speculate(rows, next_tokens):
        found = unroll(draft, target.embed, states, ids, rows, rope, 4, next_tokens)
        return torch.stack(list(found))

    rows = torch.arange(3, 12)[None]
    together = speculate(rows, own_tokens(draft))
    for i in range(rows.shape[1]):
        alone = speculate(rows[:, i : i + 1], own_tokens(draft))
        assert torch.allclose(alone[:, :, 0], together[:, :, i], atol=1e-5)
    assert not torch.allclose(together, speculate(rows, known_tokens(ids, rows)), atol=1e-3)


def test_exchanges_come_in_three_forms(tmp_path, tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]
    rows = [
        {"prompt_ids": [1, 2], "answer_ids": [3, 4, 5]},
        {"prompt": "What is 1 + 1?", "answer": "1 + 1 = 2.<|im_end|>"},
        {"messages": messages},
        {"prompt_ids": [1], "answer_ids": [2]},
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    corpus = load_exchanges(file, tokenizer, 100)
    assert len(corpus.lengths) == 3, "the last answer is too short to be judged"
    start, end = corpus.offsets[2], corpus.offsets[3]
    marked = corpus.ids[start:end][corpus.weights[start:end] > 0]
    assert tokenizer.decode(marked) == "Hello there<|im_end|>\n"
    with pytest.raises(BadData, match="no exchange fits"):
        load_exchanges(file, tokenizer, 2)
