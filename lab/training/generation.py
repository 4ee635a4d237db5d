"""Greedy answers from vLLM, with acceptance counted by the engine.

Run in its own process for each engine: `python -m eaglegate.lab.training.generation --target T
--prompts F`.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Variables set before vLLM is imported, unless the process has them already."""


@dataclass
class Answers:
    """The engine's answers to the prompts of one group, in order."""

    group: str
    ids: list[list[int]] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    drafts: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)


def load_answers(path: Path) -> list[Answers]:
    return [Answers(**row) for row in json.loads(path.read_text())]


class AnswerEngine:
    def __init__(
        self, target: Path, draft: Path | None, depth: int, dtype: str, sequences: int = 16
    ) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm import LLM

        speculative = {
            "model": str(draft),
            "method": "eagle3",
            "num_speculative_tokens": depth,
        }
        self.llm = LLM(
            model=str(target),
            dtype=dtype,
            max_model_len=4096,
            max_num_seqs=sequences,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=False,
            distributed_executor_backend="uni",
            structured_outputs_config={"backend": "xgrammar"},
            speculative_config=speculative if draft else None,
        )

    def answer(
        self, group: str, prompts: list[list[int]], tags: list[str | None], max_tokens: int
    ) -> Answers:
        """Answer prompts; `tags` has a structural tag for every answer under a grammar."""
        sampling = [sampling_params(tag, max_tokens) for tag in tags]
        start_counts = self.counters()
        outputs = self.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False
        )
        end_counts = self.counters()
        growth = {name: value - start_counts.get(name, 0) for name, value in end_counts.items()}
        positions = [name for name in growth if name.startswith("position")]
        return Answers(
            group,
            [list(output.outputs[0].token_ids) for output in outputs],
            [output.outputs[0].finish_reason == "stop" for output in outputs],
            growth.get("drafts", 0),
            growth.get("accepted", 0),
            [growth[name] for name in positions],
        )

    def counters(self) -> dict[str, int]:
        """Return the engine's own totals of speculation."""
        totals: dict[str, int] = {}
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:spec_decode_num_drafts":
                totals["drafts"] = metric.value
            elif metric.name == "vllm:spec_decode_num_accepted_tokens":
                totals["accepted"] = metric.value
            elif metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
                totals |= {f"position {i}": value for i, value in enumerate(metric.values)}
        return totals


def sampling_params(tag: str | None, max_tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    return SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        skip_special_tokens=False,
        detokenize=False,
        structured_outputs=StructuredOutputsParams(structural_tag=tag) if tag else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--prompts", type=Path, required=True, help="JSON file: group -> ids and tags"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=240)
    parser.add_argument("--sequences", type=int, default=16)
    options = parser.parse_args()
    engine = AnswerEngine(
        options.target, options.draft, options.depth, options.dtype, options.sequences
    )
    groups: dict[str, Any] = json.loads(options.prompts.read_text())
    answers = []
    for group, requests in groups.items():
        answer = engine.answer(group, requests["ids"], requests["tags"], options.max_tokens)
        answers.append(asdict(answer))
        print(f"{options.out.stem}: {group}, {len(answer.ids)} prompts answered", flush=True)
    options.out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
