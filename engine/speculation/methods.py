"""Drafting methods of vLLM: how far the depth of each may vary from step to step.

The scheduler, the planner, ``eaglegate check`` and the banner read ``METHODS``. Its facts are those
of vLLM 0.32: a proposer that asserts its K at every step, or lays out slots for K tokens once,
always drafts K tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class StepDepth(StrEnum):
    """What a method can do at a step that wants fewer drafts than K."""

    ANY = "any"
    """Draft as many tokens as the deepest request wants."""
    FULL = "full"
    """Draft K tokens whenever it drafts; a request verifies fewer of them."""


@dataclass(frozen=True, slots=True)
class DraftMethod:
    """``name`` is the method as vLLM has it, ``variant`` what distinguishes two of one name."""

    name: str
    step_depth: StepDepth
    skips: bool
    """Whether a step at depth 0 may leave the drafter out. One that follows the text must not."""
    lookup: bool = False
    """Looks drafts up in text instead of running a model: may find none, and costs hardly any."""
    known: bool = True

    @property
    def always_full(self) -> bool:
        return self.step_depth is StepDepth.FULL

    @property
    def summary(self) -> str:
        """How its depth varies, in a sentence for operators."""
        if not self.known:
            return f"method {self.name} is not known here: it drafts K tokens at every step"
        drafts = (
            "drafts K tokens whenever it drafts, and each request verifies as many as its depth"
            if self.always_full
            else "drafts as deep as the deepest request of a step"
        )
        rest = "skips steps at depth 0" if self.skips else "runs at depth 0, too"
        return f"{drafts}; {rest}"


ANY, FULL = StepDepth
MTP = "mtp"
"""vLLM renames every multi-token-prediction method to this."""
METHODS: Mapping[str, DraftMethod] = {
    method.name: method
    for method in (
        DraftMethod("eagle", ANY, skips=True),
        DraftMethod("eagle3", ANY, skips=True),
        DraftMethod(MTP, ANY, skips=True),
        DraftMethod("draft_model", ANY, skips=True),
        DraftMethod("ngram", ANY, skips=True, lookup=True),
        DraftMethod("medusa", FULL, skips=True),
        DraftMethod("mlp_speculator", FULL, skips=True),
        DraftMethod("dflash", FULL, skips=True),
        DraftMethod("dspark", FULL, skips=True),
        DraftMethod("suffix", FULL, skips=False, lookup=True),
        DraftMethod("ngram_gpu", FULL, skips=False, lookup=True),
    )
}
"""``suffix`` and ``ngram_gpu`` add the tokens of every step to what they look drafts up in."""
PARALLEL = "parallel drafting"


def find_method(speculation: Mapping[str, Any]) -> DraftMethod:
    """The method that a ``speculative_config`` names. One that is not known always drafts K."""
    name = str(speculation.get("method"))
    name = MTP if name.endswith(f"_{MTP}") else name
    found = METHODS.get(name)
    if found is None:
        return DraftMethod(name, FULL, skips=False, known=False)
    if speculation.get("parallel_drafting") and found.step_depth is ANY:
        return DraftMethod(f"{name} with {PARALLEL}", FULL, skips=found.skips)
    return found
