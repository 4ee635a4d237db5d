"""Causes of differing greedy texts: a near tie between two tokens, or a fault.

Speculation verifies several tokens in one pass, and adding in another order changes the last bits
of a logit. If two tokens are about equally likely, the other one may be chosen, and all text after
it differs legitimately. Any other difference is a fault. Requests are repeated with log
probabilities only then, because always requesting them would change what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eaglegate.lab.measure.datasets import CHAT
from eaglegate.lab.measure.load import LoadClient
from eaglegate.lab.measure.pairs import Pair, TextReport
from eaglegate.lab.measure.replay import ReplayRequest, send
from eaglegate.lab.measure.stream import RequestResult

TIE = 0.1
"""Nats between two tokens of a near tie: about bf16's resolution for usual logits."""
TOP = 5
TIED, FAULT, UNKNOWN = "near tie", "fault", "unexplained"
MOST_ASKED = 40


async def explain_texts(
    pairs: Sequence[Pair], base: LoadClient | None, other: LoadClient, tie: float = TIE
) -> TextReport:
    """Explain the texts that differ. If ``base`` is None, the base is the recorded token ids."""
    greedy_pairs = [p for p in pairs if p.request.greedy and p.base.digest and p.other.digest]
    differences = [pair for pair in greedy_pairs if pair.differs]
    kinds: list[str] = []
    examples: list[str] = []
    for pair in differences[:MOST_ASKED]:
        kind, reason = await _explain(pair.request, base, other, tie)
        kinds.append(kind)
        examples.append(f"{pair.request.id}: {kind} ({reason})")
    num_unasked = len(differences) - len(kinds)
    return TextReport(
        compared=len(greedy_pairs),
        different=len(differences),
        near_ties=kinds.count(TIED),
        faults=kinds.count(FAULT),
        unexplained=kinds.count(UNKNOWN) + num_unasked,
        examples=tuple(examples[:10]),
    )


async def _explain(
    request: ReplayRequest, base: LoadClient | None, other: LoadClient, tie: float
) -> tuple[str, str]:
    if not request.turn.path.endswith(CHAT):
        return UNKNOWN, f"no log probabilities are asked of {request.turn.path}"
    other_result = await _ask(other, request)
    if base is None:
        return _compare_recorded(request.capture_result, other_result, tie)
    base_result = await _ask(base, request)
    return compare_logprobs(base_result.logprobs, other_result.logprobs, tie)


async def _ask(client: LoadClient, request: ReplayRequest) -> RequestResult:
    ids = {"return_tokens_as_token_ids": True} if client.target.reports_steps else {}
    return await send(client, request, logprobs=True, top_logprobs=TOP, **ids)


def _compare_recorded(
    capture_result: RequestResult | None, other_result: RequestResult, tie: float
) -> tuple[str, str]:
    names = [str(entry.get("token", "")) for entry in other_result.logprobs]
    if capture_result is None or not all(name.startswith("token_id:") for name in names):
        return UNKNOWN, "the recording's tokens cannot be found among the log probabilities"
    base_logprobs = [{"token": f"token_id:{token_id}"} for token_id in capture_result.token_ids]
    return compare_logprobs(base_logprobs, other_result.logprobs, tie)


def compare_logprobs(
    base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], tie: float = TIE
) -> tuple[str, str]:
    """Judge the first token that differs, by the log probabilities of chat completions."""
    if not base or not other:
        return UNKNOWN, "no log probabilities"
    for index, (a, b) in enumerate(zip(base, other, strict=False)):
        if a["token"] != b["token"]:
            return _judge(a, b, index, tie)
    if len(base) != len(other):
        return FAULT, f"one text ends after {min(len(base), len(other))} tokens"
    return UNKNOWN, "the same text when asked again"


def _judge(a: Mapping[str, Any], b: Mapping[str, Any], index: int, tie: float) -> tuple[str, str]:
    gaps = [_find_gap(a, b["token"]), _find_gap(b, a["token"])]
    known_gaps = [gap for gap in gaps if gap is not None]
    if known_gaps:
        gap = max(known_gaps)
        kind = TIED if gap <= tie else FAULT
        return kind, f"token {index}: {gap:.3f} nats between the two"
    if "top_logprobs" in a or "top_logprobs" in b:
        return FAULT, f"token {index}: neither text's token is among the other's likeliest"
    return UNKNOWN, "no log probabilities"


def _find_gap(entry: Mapping[str, Any], token: str) -> float | None:
    """Return the gap between the chosen token and another; None if that is not listed."""
    if "logprob" not in entry:
        return None
    for top in entry.get("top_logprobs") or ():
        if top["token"] == token:
            return abs(float(entry["logprob"]) - float(top["logprob"]))
    return None
