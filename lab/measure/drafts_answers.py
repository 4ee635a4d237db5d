"""Captured answers over which drafts are unrolled, and the results.

Results are rows of a file, one per answer and draft, from which an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglegate.engine.speculation.drafts.files import fingerprint_draft
from eaglegate.engine.speculation.drafts.inspection import SpeculationReport
from eaglegate.lab.measure.drafts import (
    AnswerFacts,
    DraftReplay,
    Walks,
    walk_answer,
    walk_captured,
    walk_sampled_drafts,
)
from eaglegate.observability.captures.record import CapturedChoice, CaptureRecord

PROBABILISTIC = "probabilistic"
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")


class CompareError(ValueError):
    """Comparison that cannot be made. The message gives the reason."""


@dataclass(frozen=True)
class Answer:
    """One captured answer that can be unrolled."""

    facts: AnswerFacts
    prompt: tuple[int, ...]
    choice: CapturedChoice
    sampling: Mapping[str, Any]
    draft: str
    """Fingerprint of the draft that served it."""


@dataclass(frozen=True)
class Contestant:
    """Draft in the comparison. ``report`` is its inspection; a draft with errors is left out."""

    label: str
    folder: Path
    fingerprint: str
    report: SpeculationReport


def read_answers(
    records: Iterator[CaptureRecord], limit: int | None = None, *, drafts_sampled: bool = False
) -> tuple[list[Answer], int]:
    """Read the answers that can be unrolled, and count the others.

    If drafts are sampled, the target's probabilities count, and penalties would change them.
    """
    answers: list[Answer] = []
    num_excluded = 0
    for record in records:
        for number, choice in enumerate(record.choices):
            prompt = record.prompts[choice.prompt].token_ids
            token_ids = choice.token_ids or ()
            penalised = drafts_sampled and not record.greedy and has_penalties(record.sampling)
            # a grammar cuts drafts, which is not replayed
            if record.constraint or penalised or prompt is None or len(token_ids) < 2:
                num_excluded += 1
                continue
            if limit is not None and len(answers) >= limit:
                return answers, num_excluded
            facts = AnswerFacts(
                f"{record.id}/{number}",
                record.cluster,
                record.workload,
                record.context,
                choice.phases,
                not record.greedy,
                len(token_ids),
            )
            answers.append(Answer(facts, prompt, choice, record.sampling, record.draft))
    return answers, num_excluded


class Results:
    """Results of one draft's unrolling, kept in a file from which a run resumes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_id: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    row = json.loads(line)
                    self.by_id[row["id"]] = row
                except (ValueError, KeyError, TypeError):
                    continue

    def add(self, row: dict[str, Any]) -> None:
        self.by_id[row["id"]] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(row, separators=(",", ":")))


def unroll_all(
    options: argparse.Namespace, fit: Sequence[Contestant], answers: Sequence[Answer]
) -> dict[str, Results]:
    """Unroll the answers with every draft, and return the results by label. Raises CompareError."""
    results = {contestant.label: Results(find_results(options, contestant)) for contestant in fit}
    missing_answers = [
        answer
        for answer in answers
        if any(answer.facts.id not in result.by_id for result in results.values())
    ]
    if missing_answers:
        _unroll_todo(options, fit, missing_answers, results)
    return results


def find_results(options: argparse.Namespace, contestant: Contestant) -> Path:
    """Return the file of results. Its name contains everything that the rows depend on."""
    parts = ["unrolled", fingerprint_draft(options.target), contestant.fingerprint]
    parts += [str(options.depth)]
    parts += [PROBABILISTIC] if options.draft_sample_method == PROBABILISTIC else []
    return Path(options.out) / f"{'-'.join(parts)}.jsonl"


def _unroll_todo(
    options: argparse.Namespace,
    fit: Sequence[Contestant],
    answers: Sequence[Answer],
    results: Mapping[str, Results],
) -> None:
    try:
        import torch

        from eaglegate.lab.training.optimiser import Clock
        from eaglegate.lab.training.target import TargetModel
        from eaglegate.lab.training.unrolling import DraftHead, Trajectory, unroll_answers
    except ImportError as error:
        raise CompareError(
            f"needs {error.name}: pip install '.[train]' in eaglegate's checkout"
        ) from error
    if options.threads:
        torch.set_num_threads(options.threads)
    target = TargetModel.load(options.target)
    heads = [DraftHead.load(answer.label, answer.folder, target) for answer in fit]
    clock = Clock(len(answers), 0)
    for number, answer in enumerate(answers, 1):
        missing_heads = [head for head in heads if answer.facts.id not in results[head.name].by_id]
        sampling = _sampling(answer) | {
            "drafts_sampled": options.draft_sample_method == PROBABILISTIC
        }
        trajectory = Trajectory(answer.prompt, answer.choice.token_ids or (), **sampling)
        for label, result in unroll_answers(target, missing_heads, trajectory, options.depth):
            row = {"id": answer.facts.id, "matches": result.matches}
            if trajectory.temperature > 0:
                row["chances"] = [[round(p, 5) for p in line] for line in result.chances]
            results[label].add(row)
        print(f"\r{clock.describe(number)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def has_penalties(sampling: Mapping[str, Any]) -> bool:
    return any(name in sampling for name in PENALTIES)


def _sampling(answer: Answer) -> dict[str, Any]:
    """Return the engine's sampling parameters; empty with penalties or a bias, where only matches
    count.
    """
    parameters = answer.sampling
    if not answer.facts.sampled or has_penalties(parameters):
        return {}
    sampling = {"temperature": float(parameters.get("temperature", 1.0))}
    return sampling | {
        name: parameters[name] for name in ("top_k", "top_p", "min_p") if name in parameters
    }


def observe(
    answers: Sequence[Answer], results: Results, depths: Sequence[int]
) -> list[DraftReplay]:
    return [
        DraftReplay(
            answer.facts, walk_row(results.by_id[answer.facts.id], answer.facts.phase_at(), depths)
        )
        for answer in answers
    ]


def walk_row(
    row: Mapping[str, Any], phases: Sequence[str], depths: Sequence[int]
) -> dict[int, Walks]:
    matches = row["matches"]
    if not matches:
        return {depth: walk_sampled_drafts(row["chances"], depth, phases) for depth in depths}
    chances = row.get("chances") or [
        [float(position < hits) for position in range(depths[-1])] for hits in matches
    ]
    return {depth: walk_answer(matches, chances, depth, phases) for depth in depths}


def observe_served(answers: Sequence[Answer], depth: int) -> list[DraftReplay]:
    """Return the engine's own record of answers that it drafted at this depth."""
    return [
        DraftReplay(
            answer.facts,
            {depth: walk_captured(answer.choice.steps, depth, answer.facts.phase_at())},
        )
        for answer in answers
    ]
