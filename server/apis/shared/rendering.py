"""What the encoders of all APIs are given beside the events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.events import Finish
from engine.speculation.accounting import sum_steps
from engine.types import DecodeStep
from server.generation.job import Job


@dataclass(frozen=True, slots=True)
class Rendering:
    """``pieces`` are the bytes of every token id, ``depth`` is K of the engine."""

    pieces: Mapping[int, bytes]
    depth: int = 0
    reasoning_fields: tuple[str, ...] = ("reasoning", "reasoning_content")
    token_names: str = "text"
    """text or ids."""

    def token(self, token_id: int) -> str:
        """The text of one token, or its id; bytes that are no whole character show as U+FFFD."""
        if self.token_names == "ids":
            return f"token_id:{token_id}"
        return self.pieces[token_id].decode("utf-8", "replace")

    def text(self, token_ids: Iterable[int]) -> str:
        return b"".join(self.pieces[token_id] for token_id in token_ids).decode("utf-8", "replace")

    def metrics(self, job: Job, finish: Finish) -> dict[str, Any] | None:
        """vLLM's ``metrics`` object of one choice; None when not asked for or without a draft."""
        if job.spec_metrics == "none" or not self.depth or not finish.decode:
            return None
        detailed = job.spec_metrics == "detailed"
        return {"speculative_decoding": speculative_decoding(finish.decode, self.depth, detailed)}


def speculative_decoding(
    decode: Sequence[DecodeStep], depth: int, detailed: bool
) -> dict[str, Any]:
    """One choice's speculation under vLLM's field names, counting what was delivered.

    Formulas: engine/speculation/accounting.py. Without a verify step the acceptance length and
    the rate do not exist, and are null.
    """
    totals = sum_steps(decode)
    histogram = list(totals.histogram)
    out: dict[str, Any] = {
        "mean_acceptance_length": totals.acceptance_length,
        "draft_acceptance_rate": totals.acceptance_rate,
        "acceptance_histogram": histogram + [0] * (depth + 1 - len(histogram)),
        "num_spec_steps": totals.verify_steps,
        "num_accepted_draft_tokens": totals.accepted,
        "num_draft_tokens": totals.proposed,
        "num_spec_tokens": depth,
    }
    if detailed:
        verify = [step for step in decode if step.drafted]
        out["per_step_accepted"] = [step.accepted for step in verify]
        out["per_step_drafted"] = [step.drafted for step in verify]
    return out
