"""Attention drift: a draft's attention, and the growth of its state, by speculation depth.

python -m eaglegate.lab.training.drift --target T --draft eagle3=DIR --draft eagle3.1=DIR \\
        --data answers.jsonl

It is measured offline in float32 along the target's own greedy answers, with the draft reading its
own tokens as in serving. The data are exchanges as for draft training, with an optional "set". The
command writes a table (drift.md), numbers (drift.json) and a figure (drift.png) of all drafts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from eaglegate.lab.training.checkpoint import load_draft
from eaglegate.lab.training.draft_data import exchange
from eaglegate.lab.training.eagle import Depth, Draft, own_tokens, unroll
from eaglegate.lab.training.tables import table
from eaglegate.lab.training.target import TargetModel

SINK = 4
"""Number of first prompt tokens, which attract attention that has no better place."""


@dataclass(frozen=True)
class Exchange:
    group: str
    prompt: list[int]
    answer: list[int]


WALKED = (3, 5, 7)
"""Depths at which decoding is replayed."""


@dataclass
class GreedyWalk:
    """Greedy decoding with K drafts, replayed over a known answer."""

    steps: int = 0
    accepted: int = 0

    def add(self, lengths: Sequence[int], depth: int) -> None:
        """Add an answer; `lengths` are the numbers of consecutive correct drafts by position."""
        position = 0
        while position < len(lengths):
            hits = min(depth, lengths[position])
            self.steps += 1
            self.accepted += hits
            position += hits + 1

    @property
    def length(self) -> float:
        return 1 + self.accepted / max(1, self.steps)


@dataclass
class Profile:
    """Sums over rows by depth, which `curves` reads."""

    depths: int
    rows: int = 0
    sums: Tensor = field(init=False)
    survivors: Tensor = field(init=False)
    accepted: Tensor = field(init=False)
    walks: dict[int, GreedyWalk] = field(default_factory=lambda: {k: GreedyWalk() for k in WALKED})

    def __post_init__(self) -> None:
        self.sums = torch.zeros(len(MEASURES), self.depths, dtype=torch.float64)
        self.survivors = torch.zeros(self.depths)
        self.accepted = torch.zeros(self.depths)

    def curves(self) -> dict[str, list[float]]:
        means = self.sums / max(1, self.rows)
        curves_by_name = {name: means[i].tolist() for i, name in enumerate(MEASURES)}
        curves_by_name["accepted"] = (self.accepted / max(1, self.rows)).tolist()
        curves_by_name["conditional acceptance"] = (
            self.accepted / self.survivors.clamp(min=1)
        ).tolist()
        return {name: [round(item, 4) for item in curve] for name, curve in curves_by_name.items()}


MEASURES = (
    "fed-back norm",
    "attention on sink",
    "attention on prompt",
    "attention on answer",
    "attention on own tokens",
    "own tokens, strongest head",
)
"""Names of the measures. Attention is the mean over heads, and its parts sum to one."""


def measures(depth: Depth, length: int, prompt: int) -> Tensor:
    """Return sums over the rows of one exchange, in the order of MEASURES."""
    weights = depth.attention[0].float()
    mean = weights.mean(0)
    sink = mean[:, :SINK].sum()
    prompt_share = mean[:, SINK:prompt].sum()
    own_share = mean[:, length:].sum()
    answer_share = mean[:, prompt:length].sum()
    peak_share = weights[:, :, length:].sum(-1).max(0).values.sum()
    norm = depth.feedback[0].float().norm(dim=-1).sum()
    return torch.stack([norm, sink, prompt_share, answer_share, own_share, peak_share]).double()


@torch.no_grad()
def add(
    profile: Profile, target: TargetModel, draft: Draft, target_ids: Tensor | None, item: Exchange
) -> None:
    """Add every position of an answer that has `depths` more tokens after it."""
    prompt = len(item.prompt)
    ids = torch.tensor([[*item.prompt, *item.answer]])
    length = ids.shape[1]
    count = len(item.answer) - profile.depths
    if count < 1:
        return
    rows = torch.arange(prompt - 1, prompt - 1 + count)[None]
    states, _ = target.states(ids, draft.shape.layers_read)
    rope = target.rope(draft.shape)
    next_tokens = own_tokens(draft, target_ids)
    survivors = torch.ones(rows.shape[1], dtype=torch.bool)
    lengths = torch.zeros(rows.shape[1], dtype=torch.long)
    for depth in unroll(draft, target.embed, states, ids, rows, rope, profile.depths, next_tokens):
        k = depth.depth
        profile.sums[:, k] += measures(depth, length, prompt)
        guess = draft.lm_head(depth.output)[0].argmax(-1)
        guess = guess if target_ids is None else target_ids[guess]
        profile.survivors[k] += survivors.sum()
        survivors &= guess == ids[0, rows[0] + 2 + k]
        profile.accepted[k] += survivors.sum()
        lengths += survivors
    profile.rows += rows.shape[1]
    for k, walk in profile.walks.items():
        walk.add(lengths.tolist(), k)


def measure(
    target: TargetModel,
    draft: Draft,
    target_ids: Tensor | None,
    items: Iterable[Exchange],
    depths: int,
) -> dict[str, Profile]:
    profiles: dict[str, Profile] = {}
    for item in items:
        add(profiles.setdefault(item.group, Profile(depths)), target, draft, target_ids, item)
    return profiles


def load_exchanges(path: Path, tokenizer: Any, groups: Sequence[str], limit: int) -> list[Exchange]:
    """Load the first `limit` exchanges of each requested set, or of all sets."""
    exchanges: dict[str, list[Exchange]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        group = row.get("set", "all")
        group_items = exchanges.setdefault(group, [])
        if len(group_items) < limit and (not groups or group in groups):
            prompt, answer = exchange(row, tokenizer)
            group_items.append(Exchange(group, prompt, answer))
    return [item for items in exchanges.values() for item in items]


Curves = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""Values by draft, set, measure and depth."""


def walk_table(walks: Mapping[str, Mapping[str, Mapping[int, GreedyWalk]]]) -> str:
    """Format the acceptance lengths of replayed decoding."""
    lines = [
        [label, group, *(f"{walk.length:.3f}" for walk in walks_by_depth.values())]
        for label, groups in walks.items()
        for group, walks_by_depth in groups.items()
    ]
    return table(["draft", "set", *(f"K = {k}" for k in WALKED)], lines)


def drift_tables(curves: Curves, rows: Mapping[str, int], walks: str) -> str:
    """Format one table per set, with the drafts below each other."""
    parts = [f"### Acceptance length\n\n{walks}"]
    groups = {group: None for curves_by_group in curves.values() for group in curves_by_group}
    for group in groups:
        lines = [
            [label, name, *(f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in curve)]
            for label, curves_by_group in curves.items()
            for name, curve in curves_by_group[group].items()
        ]
        depths = [str(i) for i in range(len(lines[0]) - 2)]
        head = table(["draft", "by depth", *depths], lines)
        parts.append(f"### {group} ({rows[group]} positions)\n\n{head}")
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", action="append", required=True, help="LABEL=FOLDER, repeatable")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=["held-out", "perturbed", "long"])
    parser.add_argument("--limit", type=int, default=60, help="exchanges of each set")
    parser.add_argument("--depths", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    target = TargetModel.load(options.target)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    items = load_exchanges(options.data, tokenizer, options.sets, options.limit)
    curves: dict[str, dict[str, dict[str, list[float]]]] = {}
    rows: dict[str, int] = {}
    walks: dict[str, dict[str, dict[int, GreedyWalk]]] = {}
    for label, _, folder in (draft.partition("=") for draft in options.draft):
        draft, target_ids = load_draft(Path(folder), target.draft_shape("eagle3"))
        profiles = measure(target, draft, target_ids, items, options.depths)
        curves[label] = {group: profile.curves() for group, profile in profiles.items()}
        walks[label] = {group: profile.walks for group, profile in profiles.items()}
        rows |= {group: profile.rows for group, profile in profiles.items()}
        print(f"{label}: measured", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "drift.json").write_text(json.dumps(curves, indent=1))
    report = drift_tables(curves, rows, walk_table(walks))
    (options.out / "drift.md").write_text(report)
    from eaglegate.lab.training.drift_figure import draw

    draw(curves, options.out / "drift.png")
    print(report)


if __name__ == "__main__":
    main()
