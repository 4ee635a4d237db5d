"""The demo's evaluation: correctness of the target, and acceptance of the drafts.

python -m eaglegate.lab.training.evaluate --target T --draft eagle3=DIR --draft eagle3.1=DIR \\
        --out DIR

Every engine runs greedily in vLLM, in a process of its own. The command writes the tables
(evaluation.md) and the wrong answers with the expected ones (wrong.json).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from eaglegate.lab.training.evaluation_set import SEED, Case, all_cases
from eaglegate.lab.training.generation import Answers, load_answers
from eaglegate.lab.training.score import Score
from eaglegate.lab.training.tables import percent, table
from eaglegate.text.parsing.message import matching


@dataclass(frozen=True)
class Prompts:
    """Cases by part, in the order in which they are asked."""

    cases: dict[str, list[Case]]
    requests: dict[str, dict[str, list[Any]]]
    """Inputs of the engine by part: `ids`, and structural `tags` for answers under a grammar."""

    @staticmethod
    def of(cases: Sequence[Case], tokenizer: Any) -> Prompts:
        by_part: dict[str, list[Case]] = {}
        for case in cases:
            by_part.setdefault(f"{case.group}/{case.part}", []).append(case)
        requests = {
            part: {
                "ids": [
                    tokenizer.encode(c.prompt(tokenizer), add_special_tokens=False) for c in members
                ],
                "tags": [c.schema and structural_tag(c.schema) for c in members],
            }
            for part, members in by_part.items()
        }
        return Prompts(by_part, requests)


def structural_tag(schema: str) -> str:
    """Return the gateway's structural tag for an answer that must match ``schema``."""
    return json.dumps({"type": "structural_tag", "format": matching(json.loads(schema))})


@dataclass(frozen=True)
class Run:
    """Answers of one engine."""

    label: str
    depth: int
    answers: list[Answers]


@dataclass(frozen=True)
class Bench:
    """Target, prompts, and the folder of answers."""

    target: Path
    prompts: Path
    dtype: str
    out: Path

    def answer(self, label: str, draft: Path | None = None, depth: int = 0) -> list[Answers]:
        """Run an engine in its own process, unless its answers with these files exist already."""
        out = self.out / f"{label}-{depth}-{self.dtype}-{self.fingerprint(draft)}.json"
        if not out.exists():
            command = [
                sys.executable,
                "-m",
                "eaglegate.lab.training.generation",
                "--target",
                str(self.target),
            ]
            command += ["--prompts", str(self.prompts), "--dtype", self.dtype, "--out", str(out)]
            if draft:
                command += ["--draft", str(draft), "--depth", str(depth)]
            path = os.pathsep.join(sys.path)
            subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": path})
        return load_answers(out)

    def fingerprint(self, draft: Path | None) -> str:
        digest = hashlib.sha256(self.prompts.read_bytes())
        for folder in (self.target, draft):
            if folder:
                digest.update((folder / "model.safetensors").read_bytes())
                digest.update((folder / "config.json").read_bytes())
        return digest.hexdigest()[:8]


def behaviour(
    prompts: Prompts, answers: Sequence[Answers], tokenizer: Any
) -> dict[str, dict[str, Score]]:
    """Return the scores by group, and by kind (or part, for perturbed prompts and sums)."""
    scores: dict[str, dict[str, Score]] = {}
    for part in answers:
        for case, ids, has_ended in zip(
            prompts.cases[part.group], part.ids, part.ended, strict=True
        ):
            row = case.part if case.group in ("perturbed", "sums") else case.conversation.kind
            score = scores.setdefault(case.group, {}).setdefault(row, Score())
            score.add(case.conversation, tokenizer.decode(ids), has_ended)
    return scores


def wrong_answers(
    prompts: Prompts, answers: Sequence[Answers], tokenizer: Any
) -> list[dict[str, str]]:
    """Return every inexact answer with the expected one, for reading."""
    rows = []
    for part in answers:
        for case, ids, has_ended in zip(
            prompts.cases[part.group], part.ids, part.ended, strict=True
        ):
            text = tokenizer.decode(ids)
            if not Score().add(case.conversation, text, has_ended):
                expectation = case.conversation.answer or str(case.conversation.calls)
                question = case.conversation.messages[-1]["content"][-300:]
                rows.append(
                    {"part": part.group, "asked": question, "got": text, "wanted": expectation}
                )
    return rows


def behaviour_table(scores: Mapping[str, Mapping[str, Score]]) -> str:
    rows = []
    for group, kinds in scores.items():
        total = sum(kinds.values(), Score())
        for kind, score in [*sorted(kinds.items()), ("all", total)]:
            rows.append([group, kind, *score_cells(score)])
    head = [
        "set",
        "kind",
        "n",
        "ended",
        "exact",
        "valid JSON",
        "right functions",
        "right arguments",
    ]
    return table(head, rows)


def score_cells(score: Score) -> list[str]:
    calls = score.calls_asked
    return [
        str(score.num_asked),
        str(score.num_ended),
        str(score.num_exact),
        f"{score.valid_json}/{calls}" if calls else "",
        f"{score.right_functions}/{calls}" if calls else "",
        f"{score.right_arguments}/{score.arguments}" if calls else "",
    ]


@dataclass
class PooledAcceptance:
    """Acceptance pooled over the parts of a group."""

    drafts: int = 0
    accepted: int = 0
    by_position: tuple[int, ...] = ()

    def add(self, part: Answers) -> None:
        counts = self.by_position or (0,) * len(part.by_position)
        self.drafts += part.drafts
        self.accepted += part.accepted
        self.by_position = tuple(a + b for a, b in zip(counts, part.by_position, strict=True))

    @property
    def length(self) -> float:
        return 1 + self.accepted / max(1, self.drafts)


def acceptance(run: Run) -> dict[str, PooledAcceptance]:
    totals: dict[str, PooledAcceptance] = {}
    for part in run.answers:
        totals.setdefault(part.group.split("/")[0], PooledAcceptance()).add(part)
    return totals


def acceptance_table(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        for group, total in acceptance(run).items():
            shares = " ".join(f"{n / max(1, total.drafts):.3f}" for n in total.by_position)
            cells = [run.label, run.depth, group, f"{total.length:.3f}", shares, total.drafts]
            rows.append([str(cell) for cell in cells])
    return table(
        ["draft", "K", "set", "acceptance length", "acceptance by position", "verify steps"], rows
    )


def count_differences(base: Sequence[Answers], run: Run) -> tuple[int, int]:
    """Return the number of answers that speculation changed, and of all answers."""
    pairs = [
        (a, b)
        for base_part, other in zip(base, run.answers, strict=True)
        for a, b in zip(base_part.ids, other.ids, strict=True)
    ]
    return sum(a != b for a, b in pairs), len(pairs)


def lossless_table(base: Sequence[Answers], runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        num_changed, total = count_differences(base, run)
        rows.append([run.label, str(run.depth), f"{num_changed} of {total}"])
    return table(["draft", "K", "answers changed by speculation"], rows)


def headline(scores: Mapping[str, Mapping[str, Score]]) -> str:
    """Format the aims of the demo as one table."""
    totals = {group: sum(kinds.values(), Score()) for group, kinds in scores.items()}
    overall = sum(totals.values(), Score())
    plain, long_scores = totals["held-out"], scores["long"]
    calls = sum(
        (long_scores[k] for k in ("tool_call", "parallel_calls") if k in long_scores), Score()
    )

    def measure_exact(score: Score) -> str:
        return percent(score.num_exact, score.num_asked)

    rows = [
        ["ends its turn (all sets)", percent(overall.num_ended, overall.num_asked), "100 %"],
        ["held-out answers exact", measure_exact(plain), ""],
        ["tool calls: valid JSON", percent(plain.valid_json, plain.calls_asked), "98 %"],
        ["tool calls: right function", percent(plain.right_functions, plain.calls_asked), "97 %"],
        ["tool calls: right arguments", percent(plain.right_arguments, plain.arguments), "90 %"],
        ["arithmetic in its range", measure_exact(totals["sums"]), "90 %"],
        ["long-context tool calls exact", measure_exact(calls), "70 %"],
        ["tool calls among names alike exact", measure_exact(totals["alike"]), ""],
        ["held to unknown JSON keys: ends", measure_exact(totals["held"]), ""],
    ]
    return table(["measure", "reached", "aim"], rows)


def evaluate(
    target: Path,
    drafts: Mapping[str, Path],
    depths: Sequence[int],
    dtype: str,
    out: Path,
    scale: float,
    seed: int = SEED,
) -> str:
    """Run all engines, and return the tables as Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(target)
    prompts = Prompts.of(all_cases(tokenizer, scale, seed), tokenizer)
    prompts_path = out / "prompts.json"
    prompts_path.write_text(json.dumps(prompts.requests))
    bench = Bench(target, prompts_path, dtype, out)
    base = bench.answer("none")
    wrong_rows = wrong_answers(prompts, base, tokenizer)
    (out / "wrong.json").write_text(json.dumps(wrong_rows, indent=1, ensure_ascii=False))
    runs = []
    for depth in depths:
        for label, folder in drafts.items():
            runs.append(Run(label, depth, bench.answer(label, folder, depth)))
    scores = behaviour(prompts, base, tokenizer)
    sections = [
        "## Aims\n\n" + headline(scores),
        "## Behaviour\n\n" + behaviour_table(scores),
        f"## Acceptance ({dtype}, greedy)\n\n" + acceptance_table(runs),
        "## Losslessness\n\n" + lossless_table(base, runs),
    ]
    report = "\n\n".join(sections) + "\n"
    (out / "evaluation.md").write_text(report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", action="append", default=[], help="LABEL=FOLDER, repeatable")
    parser.add_argument("--depths", type=int, nargs="+", default=[3, 5, 7])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the results; those in it are not run again",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the evaluation set")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the evaluation set")
    options = parser.parse_args()
    drafts = {label: Path(folder) for label, _, folder in (d.partition("=") for d in options.draft)}
    settings = (options.depths, options.dtype, options.out, options.scale, options.seed)
    print(evaluate(options.target, drafts, *settings))


if __name__ == "__main__":
    main()
