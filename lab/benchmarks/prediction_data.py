"""Drafts and traffic of the prediction benchmark: six drafts of the demo, four kinds of traffic."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglegate.lab.benchmarks.improve_data import (
    ROOT,
    TARGET,
    as_body,
    make_bodies,
    train,
    write_answers,
)
from eaglegate.lab.training.data.conversation import LONG, conversation
from eaglegate.lab.training.data.render import prompt_text
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import Dialogue

DEMO = ROOT / "engine" / "demo"
SHIPPED = {"eagle3": DEMO / "eagle3", "eagle3.1": DEMO / "eagle3_1"}
METHODS: Mapping[str, Sequence[str]] = {
    "eagle3": ("eagle3", "eagle3-seed2"),
    "eagle3.1": ("eagle3.1", "eagle3.1-chat", "eagle3.1-broken", "eagle3.1-tools"),
}
"""Drafts of one shape by method; one engine can serve them in turn, and the first starts it."""
LONG_TOKENS = range(1200, 2800)
NOISE = 1.0
"""Noise on the broken draft's ``fc``, in standard deviations of its weights."""
SAMPLING: Sequence[dict[str, Any]] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.02},
)


def make_drafts(out: Path, steps: int, threads: int) -> dict[str, Path]:
    """Make the drafts, by label. Finished ones are left as they are."""
    out.mkdir(parents=True, exist_ok=True)
    chat, tools, mixed = (out / f"{name}.jsonl" for name in ("chat", "tools", "mixed"))
    if not mixed.exists():
        write_answers(tools, "tools", 41, 400)
        write_answers(chat, "chat", 42, 400)
        mixed.write_text(tools.read_text() + chat.read_text())
    how = ("--batch-tokens", "2048", "--depths", "4", "--steps")
    long, short = (*how, str(steps), "--seed", "2"), (*how, str(steps // 2), "--matrix-lr", "0.01")
    seed2 = train(out / "eagle3-seed2", mixed, *long, method="eagle3", threads=threads)
    learnt_chat = train(out / "eagle3.1-chat", chat, *long, threads=threads)
    tuned = train(out / "eagle3.1-tools", tools, *short, init=learnt_chat, threads=threads)
    broken = break_draft(SHIPPED["eagle3.1"], out / "eagle3.1-broken")
    return SHIPPED | {
        "eagle3-seed2": seed2,
        "eagle3.1-chat": learnt_chat,
        "eagle3.1-tools": tuned,
        "eagle3.1-broken": broken,
    }


def break_draft(sound: Path, out: Path) -> Path:
    """A draft that cannot tell the target's layers apart: noise over its ``fc``."""
    import torch
    from safetensors.torch import load_file, save_file

    if (out / "model.safetensors").exists():
        return out
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(sound / "config.json", out / "config.json")
    weights = load_file(sound / "model.safetensors")
    name = next(name for name in weights if name.endswith("fc.weight"))
    fc = weights[name]
    drawn = torch.randn(fc.shape, generator=torch.Generator().manual_seed(3))
    weights[name] = (fc.float() + NOISE * fc.float().std() * drawn).to(fc.dtype)
    save_file(weights, out / "model.safetensors")
    return out


def make_traffic(count: int) -> dict[str, list[dict[str, Any]]]:
    """Make the traffic, by name; ``user`` names the request, each a session of its own. All but
    one are greedy.
    """
    chat = make_bodies("chat", 52, count)
    return {
        "chat": make_bodies("chat", 51, count),
        "tools": make_bodies("tools", 51, count),
        "long": list(make_long_bodies(53, count // 2)),
        "sampled": [
            body | SAMPLING[at % len(SAMPLING)] | {"user": f"sampled-{at}"}
            for at, body in enumerate(chat)
        ],
    }


def make_long_bodies(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Conversations of many turns, half of them with tools."""
    for number, made in enumerate(make_long_conversations(seed, count)):
        yield as_body(made, f"long-{number}")


def make_long_conversations(seed: int, count: int) -> Iterator[Dialogue]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    source = Source(seed)
    shape = replace(LONG, turns=tuple(range(12, 34)), held=0.0)
    while count:
        made = conversation(source, shape)
        if len(tokenizer.encode(prompt_text(made), add_special_tokens=False)) in LONG_TOKENS:
            count -= 1
            yield made
