"""Lookups beside EAGLE on edits from this repository's history, simulated with the planner in it.

A session's prompt holds an old file and a commit's message; its answer is the new file, the edit as
``str_replace`` calls in JSON or raw, or a unified diff. New files, commit messages and tool loops
repeat less. EAGLE's tokens are drawn from its conditional acceptance, which is higher where a
lookup's next token is right, because drafts find copies easy as well. Time is in steps without a
draft: 1, 0.07 for each pass of the draft and 0.01 for each verified token.

    python -m eaglegate.lab.benchmarks.lookup_edits [--sessions 30] [--lookup 8] [--batch 4]

Lanes: EAGLE alone at each fixed depth, the planner alone, and the planner with lookups. ``gain`` is
that of the last one over EAGLE at its best fixed depth. It needs the history of the repository.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from eaglegate.engine.speculation.planner.planner import DepthPlanner
from eaglegate.engine.speculation.planner.step_cost import ObservedStep
from eaglegate.features.lookups.chooser import LookupChooser
from eaglegate.features.lookups.index import SLICE, LookupIndex
from eaglegate.server.generation.twins import TWIN_TOKENS, write_twins

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
DEPTH = 7
FIXED = (1, 2, 3, 5, 7)
DRAFT_S, VERIFY_S = 0.07, 0.01
BESIDE = (0.9, 0.88, 0.87, 0.86, 0.86, 0.86, 0.86)
"""Conditional acceptance of EAGLE where a lookup's next token is right."""
ELSEWHERE = (0.62, 0.52, 0.46, 0.42, 0.4, 0.4, 0.4)
CHARACTERS = 1_000, 16_000
"""Sizes of files."""
MIX = {"JSON edit": 25, "whole file": 5, "new file": 25, "tool loop": 35, "message": 10}
"""Share of each kind in the tokens of a coding agent."""


@dataclass(frozen=True)
class Change:
    """One file of one commit."""

    path: str
    old: str
    new: str
    message: str


@dataclass
class Session:
    """One answer, and what both drafters would propose at each of its positions."""

    prompt: list[int]
    answer: list[int]
    quotes: list[int] = field(default_factory=list)
    """Twin of the prompt's file, as the gateway hands it to the engine."""
    hits: list[int] = field(default_factory=list)
    """Leading tokens of EAGLE's drafts that are right, by position."""


def git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)
    return result.stdout.decode("utf-8", "replace")


def list_changes(kind: str, limit: int) -> Iterator[Change]:
    """Yield changed (``M``) or added (``A``) files, the newest first."""
    log = git(
        "log", "--no-merges", f"--diff-filter={kind}", "--name-only", "--format=%x00%H%n%B%x01"
    )
    count = 0
    for entry in log.split("\0")[1:]:
        head, _, names = entry.partition("\x01")
        commit, _, message = head.partition("\n")
        paths = [name for name in names.split("\n") if name.endswith((".py", ".md"))]
        if not paths:
            continue
        path = paths[0]
        try:
            new = git("show", f"{commit}:{path}")
            old = git("show", f"{commit}^:{path}") if kind == "M" else ""
        except subprocess.CalledProcessError:  # the oldest commit of a shallow history
            continue
        if CHARACTERS[0] <= len(new) <= CHARACTERS[1]:
            yield Change(path, old, new, message.strip())
            count += 1
        if count == limit:
            return


def list_hunks(change: Change, context: int = 2) -> Iterator[tuple[str, str]]:
    """Yield old and new text of each group of changed lines."""
    old, new = change.old.splitlines(keepends=True), change.new.splitlines(keepends=True)
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(
        context
    ):
        _, old_start, _, new_start, _ = group[0]
        _, _, old_end, _, new_end = group[-1]
        yield "".join(old[old_start:old_end]), "".join(new[new_start:new_end])


def write_whole(change: Change) -> str:
    return change.new


def write_json(change: Change) -> str:
    return "\n".join(
        json.dumps(
            {"command": "str_replace", "path": change.path, "old_str": old, "new_str": new},
            ensure_ascii=False,
        )
        for old, new in list_hunks(change)
    )


def write_raw(change: Change) -> str:
    return "\n".join(
        f"<path>{change.path}</path>\n<old>\n{old}</old>\n<new>\n{new}</new>"
        for old, new in list_hunks(change)
    )


def write_diff(change: Change) -> str:
    lines = [text.splitlines(keepends=True) for text in (change.old, change.new)]
    return "".join(difflib.unified_diff(*lines, f"a/{change.path}", f"b/{change.path}"))


def write_calls(change: Change) -> str:
    """Write the calls of an agent that reads what ``git`` has listed."""
    names = [name for name in change.old.split("\n") if name]
    calls = [
        json.dumps({"name": "read_file", "arguments": {"path": name.split(" ")[0]}})
        for name in names[:6]
    ]
    return "\n".join([change.message.split("\n")[0], *calls])


ANSWERS: dict[str, Callable[[Change], str]] = {
    "whole file": write_whole,
    "raw edit": write_raw,
    "JSON edit": write_json,
    "diff": write_diff,
}


@cache
def get_tokenizer() -> Tekkenizer:
    return Tekkenizer.from_file(TOKENIZER)


def encode(text: str) -> list[int]:
    return list(get_tokenizer().encode(text, bos=False, eos=False))


def make_sessions(count: int) -> dict[str, list[Session]]:
    """Make sessions of every kind."""
    changes, additions = [*list_changes("M", count)], [*list_changes("A", count)]
    files = [write_twins([{"role": "tool", "content": change.old}]) for change in changes]
    texts: dict[str, list[tuple[str, str]]] = {}
    for kind, write in ANSWERS.items():
        texts[kind] = [
            (f"{c.message}\n\n{c.path}\n```\n{c.old}```\n\nTask: apply the change.\n", write(c))
            for c in changes
        ]
    examples = changes[0].new + changes[1].new
    texts["new file"] = [
        (f"{examples}\n\n{c.message}\n\nWrite {c.path}.\n", c.new) for c in additions
    ]
    texts["message"] = [(write_diff(c) + "\n\nWrite the message.\n", c.message) for c in changes]
    loops = []
    for index, change in enumerate(changes):
        names = "\n".join(f"{c.path} {len(c.new)}" for c in changes[index : index + 12])
        loop = Change("", names, "", change.message)
        loops.append((f"$ ls -s\n{names}\n", write_calls(loop)))
    texts["tool loop"] = loops
    twins = dict.fromkeys(ANSWERS, files)
    return {
        kind: [
            make_session(prompt, answer, twin, seed)
            for seed, ((prompt, answer), twin) in enumerate(
                zip(pairs, twins.get(kind, [""] * len(pairs)), strict=True)
            )
        ]
        for kind, pairs in texts.items()
    }


def make_session(prompt: str, answer: str, twin: str, seed: int) -> Session:
    session = Session(encode(prompt), encode(answer)[:3000], encode(twin)[-TWIN_TOKENS:])
    rng = random.Random(seed)
    for right in list_right_lookups(session):
        hits, acceptance = 0, BESIDE if right else ELSEWHERE
        while hits < DEPTH and rng.random() < acceptance[hits]:
            hits += 1
        session.hits.append(hits)
    return session


def list_right_lookups(session: Session) -> Iterator[bool]:
    """Yield for each position of the answer whether a lookup's next token is right."""
    known = [*session.prompt]
    index = LookupIndex(known, len(known))
    while index.build(SLICE):
        pass
    for token in session.answer:
        index.follow()
        yield index.position >= 0 and known[index.position] == token
        known.append(token)


@dataclass
class Lane:
    """One way to speculate. Without a planner the depth is fixed."""

    depth: int = 0
    planner: DepthPlanner | None = None
    chooser: LookupChooser | None = None
    uses_twin: bool = False
    seconds: float = 0.0
    tokens: int = 0
    lookups: int = 0

    def run(self, sessions: Sequence[Session], batch: int) -> None:
        """Decode all sessions, ``batch`` at once."""
        waiting = [(f"{index}", session) for index, session in enumerate(sessions)]
        active: dict[str, tuple[Session, list[int]]] = {}
        drafts: dict[str, list[int]] = {}
        lookups: set[str] = set()
        while waiting or active:
            while waiting and len(active) < batch:
                name, session = waiting.pop(0)
                text = [*session.prompt, session.answer[0]] if session.answer else []
                if len(session.answer) > 1:
                    active[name] = session, text
                    self._begin(name, session, text)
            if active:
                drafts, lookups = self._step(active, drafts, lookups)

    def _begin(self, name: str, session: Session, text: list[int]) -> None:
        if self.planner is not None:
            self.planner.begin(name, "edit", "")
        if self.chooser is not None:
            sources = [session.quotes] if self.uses_twin and session.quotes else []
            self.chooser.begin(name, text, len(session.prompt), "edit", sources=sources)
            for _ in range(len(session.prompt) // SLICE + len(session.quotes) // SLICE + 4):
                self.chooser.begin_step()

    def _step(
        self,
        active: dict[str, tuple[Session, list[int]]],
        proposals: dict[str, list[int]],
        lookups: set[str],
    ) -> tuple[dict[str, list[int]], set[str]]:
        """Verify proposals and make the next ones. Returns these, and who looked them up."""
        names = [*active]
        bounds = [len(s.prompt) + len(s.answer) - len(t) - 1 for s, t in active.values()]
        depth, widths = self.depth, [self.depth] * len(names)
        if self.planner is not None:
            plan = self.planner.plan(names, [min(DEPTH, max(0, bound)) for bound in bounds])
            depth, widths = plan.depth, plan.widths
        if self.chooser is not None and depth > 1 and self.chooser.are_sure(names):
            depth = 1
        num_verified = sum(len(proposals.get(name, ())) for name in names)
        seconds = 1 + DRAFT_S * depth + VERIFY_S * num_verified
        counts = {name: self._commit(*active[name], proposals.get(name, [])) for name in names}
        self.seconds += seconds
        self._observe(names, proposals, lookups, counts, depth, seconds)
        next_proposals, next_lookups = {}, set[str]()
        if self.chooser is not None:
            self.chooser.begin_step()
        for name, width in zip(names, widths, strict=True):
            session, text = active[name]
            position = len(text) - len(session.prompt)
            if position >= len(session.answer):
                del active[name]
                self._end(name)
                continue
            tokens = self._draft(session, position, depth)
            next_proposals[name] = tokens[:width]
            if self.chooser is not None:
                limit = len(session.answer) - position - 1
                width = min(width, depth)
                lookup = self.chooser.choose(
                    name, tokens, width, min(limit, self.chooser.acceptance.width)
                )
                if lookup is not None:
                    next_proposals[name] = lookup
                    next_lookups.add(name)
                    self.lookups += 1
        return next_proposals, next_lookups

    def _commit(self, session: Session, text: list[int], proposal: list[int]) -> int:
        """Commit a proposal's right tokens and one more. Return the number of right tokens."""
        position = len(text) - len(session.prompt)
        truth = session.answer[position : position + len(proposal) + 1]
        hits = 0
        while hits < min(len(proposal), len(truth)) and proposal[hits] == truth[hits]:
            hits += 1
        text += truth[: hits + 1]
        self.tokens += len(truth[: hits + 1])
        return hits

    def _observe(
        self,
        names: list[str],
        proposals: dict[str, list[int]],
        lookups: set[str],
        counts: dict[str, int],
        depth: int,
        seconds: float,
    ) -> None:
        if self.planner is None:
            return
        drafting = [name for name in names if name not in lookups]
        drafted = tuple(len(proposals.get(name, ())) for name in drafting)
        accepted = tuple(counts[name] for name in drafting)
        others = sum(1 + counts[name] for name in lookups if name in counts)
        self.planner.observe(drafting, drafted, accepted, other_tokens=others)
        num_verified = sum(len(proposals.get(name, ())) for name in names)
        self.planner.observe_step(ObservedStep(len(names), num_verified, depth, seconds / 100))
        if self.chooser is not None:
            price = self.planner.get_token_price(len(names))
            if price is not None:
                self.chooser.acceptance.price = price

    def _draft(self, session: Session, position: int, depth: int) -> list[int]:
        hits = min(session.hits[position], depth)
        right = session.answer[position : position + hits]
        return right + [-1] * (depth - len(right))

    def _end(self, name: str) -> None:
        if self.planner is not None:
            self.planner.end(name)
        if self.chooser is not None:
            self.chooser.end(name)


def run_kind(sessions: Sequence[Session], width: int, batch: int) -> dict[str, Lane]:
    lanes = {f"EAGLE {depth}": Lane(depth) for depth in FIXED}
    lanes["planner"] = Lane(planner=DepthPlanner(DEPTH))
    for name, uses_twin in (("lookups", False), ("twin", True)):
        chooser = LookupChooser(width, DEPTH)
        lanes[name] = Lane(planner=DepthPlanner(DEPTH), chooser=chooser, uses_twin=uses_twin)
    for lane in lanes.values():
        lane.run(sessions, batch)
    return lanes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--lookup", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    sessions = make_sessions(options.sessions)
    columns = ("best fixed", 11), ("planner", 8), ("gain", 6), ("twin", 6), ("lookups", 8)
    heads = " ".join(f"{name:>{width}}" for name, width in columns)
    print(f"{'':12} {'tokens':>7} {heads}")
    fixed_total = lookup_total = twin_total = 0.0
    for kind, members in sessions.items():
        lanes = run_kind(members, options.lookup, options.batch)
        fixed = min((lanes[f"EAGLE {depth}"] for depth in FIXED), key=lambda lane: lane.seconds)
        lookups, planner = lanes["lookups"], lanes["planner"]
        gain = fixed.seconds / lookups.seconds
        share = MIX.get(kind, 0) / lookups.tokens
        fixed_total += share * fixed.seconds
        lookup_total += share * lookups.seconds
        twin_total += share * lanes["twin"].seconds
        print(
            f"{kind:12} {lookups.tokens:7} {'EAGLE ' + str(fixed.depth):>11} "
            f"{fixed.seconds / planner.seconds:8.3f} {gain:6.3f} "
            f"{fixed.seconds / lanes['twin'].seconds:6.3f} {lookups.lookups:8}",
            flush=True,
        )
    gain, twin_gain = fixed_total / lookup_total, fixed_total / twin_total
    print(f"mix of a coding agent: {gain:.3f}, with the twin {twin_gain:.3f}")


if __name__ == "__main__":
    main()
