"""Traffic and drafts of the improvement benchmark: the demo's conversations, by domain.

The base draft has never seen a tool. Two bad candidates are made from a draft: one tuned on answers
of random tokens, one tuned so hard on a single domain that it loses the others.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eaglegate.lab.training.data.conversation import SHORT, conversation
from eaglegate.lab.training.data.render import answer_text, prompt_text
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import Dialogue

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "engine" / "demo" / "target"
SHAPES = {"tools": replace(SHORT, tools=1.0, held=0.0), "chat": replace(SHORT, tools=0.0, held=0.0)}


def make_conversations(domain: str, seed: int, count: int) -> Iterator[Dialogue]:
    source = Source(seed)
    for _ in range(count):
        yield conversation(source, SHAPES[domain])


def make_bodies(domain: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Chat completions, greedy, each a session of its own."""
    return [
        as_body(made, f"{domain}-{seed}-{number}")
        for number, made in enumerate(make_conversations(domain, seed, count))
    ]


def as_body(made: Dialogue, user: str) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": _as_sent(made.messages),
        **({"tools": made.tools} if made.tools else {}),
        "temperature": 0,
        "max_tokens": 128,
        "stream": True,
        "user": user,
    }


def _as_sent(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Write messages as a client sends them: calls have ids and their arguments are text."""
    sent, calls = [], 0
    for message in messages:
        if "tool_calls" in message:
            calls = 0
            made = [_call(at, call) for at, call in enumerate(message["tool_calls"])]
            message = {**message, "tool_calls": made}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": f"call_{calls}"}
            calls += 1
        sent.append(message)
    return sent


def _call(at: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"])
    return {**call, "id": f"call_{at}", "function": {**function, "arguments": arguments}}


def write_answers(out: Path, domain: str, seed: int, count: int, garbage: bool = False) -> Path:
    """Exchanges to train on, with the target's own greedy answers, or with random tokens."""
    import torch
    from transformers import AutoTokenizer

    from eaglegate.lab.training.answers import Expected, grouped, own_answers
    from eaglegate.lab.training.target import TargetModel

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    target = TargetModel.load(TARGET, "cpu", torch.bfloat16)
    draws = random.Random(seed)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    items = [
        Expected(encode(prompt_text(made)), encode("".join(answer_text(made, True))))
        for made in make_conversations(domain, seed, count)
    ]
    with out.open("w", encoding="utf-8") as file:
        for group in grouped([item for item in items if len(item.ids) < 1500]):
            for item, answer in zip(group, own_answers(target, group), strict=True):
                if garbage:
                    answer = [draws.randrange(4, len(tokenizer)) for _ in answer]
                row = {"prompt_ids": item.prompt, "answer_ids": answer}
                file.write(json.dumps(row) + "\n")
    return out


def train(
    out: Path,
    data: Path,
    *more: str,
    init: Path | None = None,
    method: str = "eagle3.1",
    threads: int = 2,
) -> Path:
    """``eaglegate-train-draft``; a finished draft is left as it is."""
    if (out / "model.safetensors").exists():
        return out
    start = ("--init", str(init)) if init else ("--method", method)
    command = [
        sys.executable,
        "-m",
        "eaglegate.lab.training.draft_cli",
        "--target",
        str(TARGET),
        *start,
    ]
    command += ["--data", str(data), "--out", str(out), "--threads", str(threads), *more]
    subprocess.run(command, cwd=ROOT, check=True)
    return out
