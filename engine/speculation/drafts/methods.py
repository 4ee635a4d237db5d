"""vLLM's drafting methods, with the limits on the depth of each on both model runners.

The scheduler, the warm-up, the planner, ``eaglegate check``, the banner and docs/methods.md read
``METHODS``. Its facts apply to vLLM 0.32. A proposer that asserts its K at every step, or that
allocates slots for K tokens once, always drafts K tokens.
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
    """vLLM's model runners. The second one is used wherever Triton works: on every GPU."""

    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True, slots=True)
class StepBehaviour:
    """Behaviour of one method on one model runner."""

    depth: StepDepth
    skips: bool
    """True if a step at depth 0 skips the drafter. A drafter that tracks the text must not be
    skipped."""

    @property
    def summary(self) -> str:
        """Sentence for operators that describes how the depth varies."""
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
    """A drafting method, with vLLM's ``name``. A runner without the method has no behaviour."""

    name: str
    first: StepBehaviour | None = None
    second: StepBehaviour | None = None
    may_find_none: bool = False
    """True if drafts are looked up in text. A search may find none, and costs hardly any time."""
    is_known: bool = True

    def on(self, runner: Runner) -> StepBehaviour:
        """Return the method's behaviour on a runner. vLLM uses the other runner if this one lacks
        the method."""
        behaviour, alternative = self.first, self.second
        if runner is Runner.SECOND:
            behaviour, alternative = alternative, behaviour
        return behaviour or alternative or AT_K

    @property
    def runs(self) -> bool:
        """True if any of vLLM's model runners has the method."""
        return bool(self.first or self.second)

    @property
    def summary(self) -> str:
        """Sentence for operators that describes how the method's depth varies."""
        if not self.is_known:
            return f"{self.on(Runner.FIRST).summary}: eaglegate does not know method {self.name}"
        summary, second = self.on(Runner.FIRST).summary, self.on(Runner.SECOND).summary
        if summary == second:
            return summary
        return f"{summary}; on vLLM's second model runner {second}"


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
        DraftMethod("ngram", STEP_SKIPS, FULL_RUNS, may_find_none=True),
        DraftMethod("ngram_gpu", FULL_RUNS, FULL_RUNS, may_find_none=True),
        DraftMethod("suffix", FULL_RUNS, None, may_find_none=True),
        DraftMethod("medusa", FULL_SKIPS, None),
        DraftMethod("dflash", FULL_SKIPS, FULL_RUNS),
        DraftMethod("dspark", None, FULL_RUNS),
        DraftMethod("mlp_speculator", None, None),
    )
}
"""Methods by name. On the first runner ``suffix`` and ``ngram_gpu`` add the tokens of every step to
the text in which they look drafts up. On the second runner only the speculators of EAGLE and MTP
follow a step's depth and can skip a pass (``engine/vllm_backend/patches``). An MTP
draft of several layers drafts K tokens there.
"""
PARALLEL = "parallel drafting"


def find_method(speculation: Mapping[str, Any]) -> DraftMethod:
    """Return the method that a ``speculative_config`` names. An unknown method stays at K."""
    name = str(speculation.get("method"))
    name = MTP if name.endswith(f"_{MTP}") else name
    match = METHODS.get(name)
    if match is None:
        return DraftMethod(name, AT_K, AT_K, is_known=False)
    if speculation.get("parallel_drafting") and match.first is STEP_SKIPS:
        return DraftMethod(f"{name} with {PARALLEL}", FULL_SKIPS)
    return match
