"""Drafting methods of vLLM: how far the depth of each may vary, on either of its model runners.

The scheduler, the warm-up, the planner, ``eaglegate check``, the banner and docs/methods.md read
``METHODS``. Its facts are those of vLLM 0.32: a proposer that asserts its K at every step, or lays
out slots for K tokens once, always drafts K tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class StepDepth(StrEnum):
    """A method's behaviour at a step that wants fewer drafts than K."""

    ANY = "per step"
    """Draft as many tokens as the deepest request wants."""
    FULL = "by verifying fewer"
    """Draft K tokens whenever it drafts; a request verifies fewer of them."""
    FIXED = "not at all"
    """Draft and verify K tokens at every step of every request."""


class Runner(StrEnum):
    """vLLM's model runners. It takes the second one wherever Triton works: on every GPU."""

    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class StepBehaviour:
    """One method on one model runner."""

    depth: StepDepth
    skips: bool
    """Whether a step at depth 0 leaves the drafter out. One that follows the text must not."""

    @property
    def summary(self) -> str:
        """Describe in a sentence for operators how the depth varies."""
        if self.depth is StepDepth.FIXED:
            return "drafts and verifies K tokens at every step"
        drafts = (
            "drafts K tokens whenever it drafts, and each request verifies as many as its depth"
            if self.depth is StepDepth.FULL
            else "drafts as deep as the deepest request of a step"
        )
        return f"{drafts}; {'skips' if self.skips else 'runs in'} steps at depth 0"


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """``name`` is the method as vLLM has it; a runner without it has no behaviour."""

    name: str
    first: StepBehaviour | None = None
    second: StepBehaviour | None = None
    lookup: bool = False
    """Looks drafts up in text instead of running a model: may find none, and costs hardly any."""
    known: bool = True

    def on(self, runner: Runner) -> StepBehaviour:
        """Return the method's behaviour on a runner. vLLM moves a method that a runner lacks to
        the other one.
        """
        own, other = self.first, self.second
        if runner is Runner.SECOND:
            own, other = other, own
        return own or other or AT_K

    @property
    def runs(self) -> bool:
        """Whether any model runner of vLLM has it."""
        return bool(self.first or self.second)

    @property
    def summary(self) -> str:
        """Describe in a sentence for operators how the method's depth varies."""
        if not self.known:
            return f"{self.on(Runner.FIRST).summary}: eaglegate does not know method {self.name}"
        first, second = self.on(Runner.FIRST).summary, self.on(Runner.SECOND).summary
        return first if first == second else f"{first}; on vLLM's second model runner {second}"


STEP_SKIPS = StepBehaviour(StepDepth.ANY, skips=True)
FULL_SKIPS = StepBehaviour(StepDepth.FULL, skips=True)
FULL_RUNS = StepBehaviour(StepDepth.FULL, skips=False)
AT_K = StepBehaviour(StepDepth.FIXED, skips=False)
MTP = "mtp"
"""vLLM renames every multi-token-prediction method to this."""
METHODS: Mapping[str, DraftMethod] = {
    method.name: method
    for method in (
        DraftMethod("eagle", STEP_SKIPS, STEP_SKIPS),
        DraftMethod("eagle3", STEP_SKIPS, STEP_SKIPS),
        DraftMethod(MTP, STEP_SKIPS, STEP_SKIPS),
        DraftMethod("draft_model", STEP_SKIPS, FULL_RUNS),
        DraftMethod("ngram", STEP_SKIPS, FULL_RUNS, lookup=True),
        DraftMethod("ngram_gpu", FULL_RUNS, FULL_RUNS, lookup=True),
        DraftMethod("suffix", FULL_RUNS, None, lookup=True),
        DraftMethod("medusa", FULL_SKIPS, None),
        DraftMethod("dflash", FULL_SKIPS, FULL_RUNS),
        DraftMethod("dspark", None, FULL_RUNS),
        DraftMethod("mlp_speculator", None, None),
    )
}
"""Methods by name. On the first runner ``suffix`` and ``ngram_gpu`` add the tokens of every step
to the text they look drafts up in. On the second only EAGLE's and MTP's speculators take a
step's depth, and leave out a pass (``second_runner`` in ``engine/vllm_backend``); an MTP draft
of several layers drafts K there.
"""
PARALLEL = "parallel drafting"


def find_method(speculation: Mapping[str, Any]) -> DraftMethod:
    """The method that a ``speculative_config`` names. One that is not known stays at K."""
    name = str(speculation.get("method"))
    name = MTP if name.endswith(f"_{MTP}") else name
    found = METHODS.get(name)
    if found is None:
        return DraftMethod(name, AT_K, AT_K, known=False)
    if speculation.get("parallel_drafting") and found.first is STEP_SKIPS:
        return DraftMethod(f"{name} with {PARALLEL}", FULL_SKIPS)
    return found
