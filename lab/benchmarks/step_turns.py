"""Engines that take turns step by step in one process: what a step of each costs.

    python -m eaglegate.lab.benchmarks.step_turns none none "depth 0" [--streams 1 4 16 64]

Lanes: ``none`` (no draft), ``vllm`` (vLLM's scheduler, K drafts) and ``depth N`` (the scheduler of
a pod). A difference of two lanes is the median over neighbouring steps, so noise of the machine
falls on both. The first lane of a process is slower than its equals: name the lane to compare with
twice. Lanes share a process, so patches of vLLM's worker run in all of them.
"""

from __future__ import annotations

import argparse
import gc
import os
from statistics import median
from time import perf_counter
from typing import Any

ENGINE = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_num_seqs": 64,
    "max_model_len": 1024,
    "enable_prefix_caching": False,
    "disable_log_stats": True,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}
PROMPT = (9, 17, 33)
WARM_STEPS = 4


def make_engine(lane: str, options: argparse.Namespace) -> Any:
    from vllm import LLM

    fields: dict[str, Any] = ENGINE | {"model": options.target}
    if lane != "none":
        fields["speculative_config"] = {
            "method": "eagle3",
            "model": options.draft,
            "num_speculative_tokens": options.k,
        }
    if lane.startswith("depth "):
        os.environ["EAGLEGATE_DEPTH"] = lane.removeprefix("depth ")
        fields["scheduler_cls"] = "eaglegate.vllm.Scheduler"
    return LLM(**fields).llm_engine


def begin(engine: Any, streams: int) -> None:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
    for number in range(streams):
        engine.add_request(str(number), {"prompt_token_ids": [number + 5, *PROMPT]}, sampling)
    for _ in range(WARM_STEPS):
        engine.step()


def take_turns(engines: list[Any], steps: int) -> list[list[float]]:
    """Return the milliseconds of each engine's steps; every other turn is backwards."""
    times: list[list[float]] = [[] for _ in engines]
    for turn in range(steps):
        pairs = list(zip(engines, times, strict=True))
        for engine, taken in pairs if turn % 2 else reversed(pairs):
            start = perf_counter()
            engine.step()
            taken.append(1000 * (perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    demo = "engine/demo"
    parser.add_argument("lanes", nargs="+")
    parser.add_argument("--target", default=f"{demo}/target")
    parser.add_argument("--draft", default=f"{demo}/eagle3_1")
    parser.add_argument("--k", type=int, default=7)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    engines = [make_engine(lane, options) for lane in options.lanes]
    gc.freeze()
    for streams in options.streams:
        for engine in engines:
            begin(engine, streams)
        times = take_turns(engines, min(options.steps, 900 // (1 + options.k)))
        for engine in engines:
            engine.abort_request([str(number) for number in range(streams)], internal=True)
            engine.step()
        for lane, taken in zip(options.lanes, times, strict=True):
            print(f"{streams:3} streams, {lane:8}: {median(taken):7.3f} ms a step", end="")
            differences = (
                100 * median(a - b for a, b in zip(taken, other, strict=True)) / median(other)
                for other in times
            )
            print("".join(f", {percent:+5.1f} %" for percent in differences), flush=True)


if __name__ == "__main__":
    main()
