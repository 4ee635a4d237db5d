"""The pause of a draft exchange, with the draft staged during steps or read in the pause.

One engine serves a stream and exchanges two drafts of some hundred MB in turn, in both ways. Before
each exchange the files are dropped from the page cache, as if the draft were new.

    python -m eaglegate.lab.benchmarks.draft_pause [--hidden 2048] [--rounds 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from eaglegate.engine.vllm_backend.arguments import DEMO, make_demo_arguments
from eaglegate.engine.vllm_backend.engine import VllmEngine, _call_core
from eaglegate.engine.vllm_backend.renderer import VllmRenderer
from tests.engine.drive import make_greedy, render, run, run_engine

SOURCE = DEMO / "eagle3_1"
HEAD = 64
DEPTH = 3


def make_draft(folder: Path, width: int, seed: int) -> Path:
    """Make a random EAGLE 3.1 draft for the demo's target, ``width`` wide."""
    config = json.loads((SOURCE / "config.json").read_text(encoding="utf-8"))
    target, words, inner = config["hidden_size"], config["vocab_size"], 4 * width
    heads = width // HEAD
    config |= {"hidden_size": width, "intermediate_size": inner, "target_hidden_size": target}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": HEAD}
    shapes = {
        "fc": (width, 3 * target),
        "lm_head": (words, width),
        "embed_tokens": (words, width),
    }
    shapes |= {f"midlayer.self_attn.{part}_proj": (width, 2 * width) for part in "qkv"}
    shapes |= {f"midlayer.mlp.{part}_proj": (inner, width) for part in ("gate", "up")}
    shapes |= {"midlayer.self_attn.o_proj": (width, width)}
    shapes |= {"midlayer.mlp.down_proj": (width, inner)}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    draws = torch.Generator().manual_seed(seed)
    tensors = {f"{n}.weight": torch.randn(s, generator=draws) * 0.02 for n, s in shapes.items()}
    tensors |= {f"midlayer.{name}.weight": torch.ones(width) for name in norms}
    tensors |= {"norm.weight": torch.ones(width)}
    tensors |= {f"fc_norm.{index}.weight": torch.ones(target) for index in range(3)}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def forget_pages(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def exchange(engine: VllmEngine, is_staged: bool, path: Path, last_path: Path) -> float:
    if is_staged:
        return await engine.swap_draft(str(path), str(last_path))
    assert engine._llm is not None
    return float(await _call_core(engine._llm, "swap_draft", str(path), str(last_path)))


async def measure(hidden: int, rounds: int, folder: Path) -> dict[bool, list[float]]:
    drafts = [
        make_draft(folder / name, hidden, number) for number, name in enumerate(("one", "two"))
    ]
    size = (drafts[0] / "model.safetensors").stat().st_size
    print(f"drafts of {size / 1e6:.0f} MB", flush=True)
    config = {"method": "eagle3", "model": str(drafts[0]), "num_speculative_tokens": DEPTH}
    prompt = render(VllmRenderer(make_demo_arguments()))[1]
    pauses: dict[bool, list[float]] = {True: [], False: []}
    async with run_engine(dtype="float32", speculative_config=config) as engine:
        stop = asyncio.Event()
        stream = asyncio.create_task(serve(engine, prompt, stop))
        index = 0
        for number in range(2 * rounds):
            is_staged = number % 2 == 0
            for draft in drafts:
                forget_pages(draft)
            last_index, index = index, 1 - index
            pauses[is_staged].append(
                await exchange(engine, is_staged, drafts[index], drafts[last_index])
            )
        stop.set()
        await stream
    return pauses


async def serve(engine: VllmEngine, prompt: tuple[int, ...], stop: asyncio.Event) -> None:
    while not stop.is_set():
        await run(engine, make_greedy("stream", prompt, 64))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pauses = await measure(options.hidden, options.rounds, Path(folder))
    for is_staged, name in ((False, "read in the pause"), (True, "staged before")):
        pauses_ms = sorted(1000 * pause for pause in pauses[is_staged])
        print(
            f"{name:18s} median {statistics.median(pauses_ms):5.0f} ms of "
            f"{[*map(round, pauses_ms)]}"
        )
    ratio = statistics.median(pauses[True]) / statistics.median(pauses[False])
    print(f"staged against read in the pause: {ratio:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
