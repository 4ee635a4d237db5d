"""The pieces of an audit of one answer, its scores, and the engines that give them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from msgspec.structs import replace

from eaglegate.engine.speculation.accounts.rounding import find_tie
from eaglegate.engine.types import LAST_PRIORITY, EngineRequest, Sampling

LEAST_TEMPERATURE = 0.01
"""Temperature to which vLLM raises lower ones, except 0."""
PIECE = 512
"""Most tokens that a step reads for an audit, so that clients' steps stay short."""
GREEDY_BELOW = 1e-5
"""Temperature below which vLLM chooses greedily."""


class Choosing(StrEnum):
    """The choice of an answer's tokens, which decides how they can be audited."""

    GREEDY = "greedy"
    SEEDED = "seeded"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class ScoringRules:
    """The rules besides the logits that decide a token.

    The worker gets them as plain values, separate from the engine's own sampling parameters,
    because a fault in those must not reach the audit.
    """

    prompt_tokens: int
    last: int
    """The answer's last token, which is not part of the engine's prompt."""
    tie: float
    """Greatest difference of two logits that rounding explains, in nats."""
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    bias_tokens: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    allowed: tuple[int, ...] = ()
    first: int = 0
    """Place in the answer at which scoring begins."""

    @classmethod
    def of(
        cls, request: EngineRequest, last_token: int, dtype: str, first: int = 0
    ) -> ScoringRules:
        """Return the rules of a request as vLLM applies them."""
        s = request.sampling
        greedy = s.temperature < GREEDY_BELOW
        return cls(
            prompt_tokens=request.num_prompt,
            last=last_token,
            tie=find_tie(dtype),
            temperature=0.0 if greedy else max(s.temperature, LEAST_TEMPERATURE),
            top_p=1.0 if greedy else s.top_p,
            top_k=0 if greedy else max(0, s.top_k),
            min_p=0.0 if greedy else s.min_p,
            seed=None if greedy or s.seed == -1 else s.seed,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repetition_penalty=s.repetition_penalty,
            min_tokens=s.min_tokens,
            bias_tokens=tuple(s.logit_bias),
            bias_values=tuple(s.logit_bias.values()),
            allowed=s.allowed_token_ids,
            first=first,
        )

    @property
    def choosing(self) -> Choosing:
        if not self.temperature:
            return Choosing.GREEDY
        return Choosing.SAMPLED if self.seed is None else Choosing.SEEDED

    def to_fields(self) -> dict[str, Any]:
        """Return plain values for the engine's messages."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ScoringRules:
        pairs = ("bias_tokens", "bias_values", "allowed")
        return cls(**{**fields, **{name: tuple(fields[name]) for name in pairs}})


@dataclass(frozen=True, slots=True)
class AnswerScores:
    """Scores of an answer's tokens against the target's own logits.

    ``margins``: for a token chosen by a maximum (greedy, or with a seed), the nats by which the
    target prefers another token; 0 if the token is the best. A sampled token has 0. A token that
    the rules exclude has infinity. ``evidence``: log likelihood ratios of alternatives to the
    request's distribution, summed over a sampled answer's tokens; None for others. ``judged``
    counts the tokens in that sum. The other tokens are at places where rounding may decide which
    tokens top-k, top-p and min-p keep.
    """

    margins: tuple[float, ...]
    best: tuple[int, ...] = ()
    """The target's own choice for each token; empty for sampled answers."""
    evidence: Mapping[str, float] | None = None
    judged: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> AnswerScores:
        return cls(
            margins=tuple(fields["margins"]),
            best=tuple(fields["best"]),
            evidence=dict(fields["evidence"]) or None,
            judged=int(fields["judged"]),
        )

    @classmethod
    def join(cls, parts: Sequence[AnswerScores]) -> AnswerScores:
        """Join the scores of an answer's parts, in order."""
        evidence_parts = [part.evidence for part in parts if part.evidence is not None]
        kinds = evidence_parts[0] if evidence_parts else ()
        return cls(
            tuple(margin for part in parts for margin in part.margins),
            tuple(token for part in parts for token in part.best),
            {kind: sum(evidence[kind] for evidence in evidence_parts) for kind in kinds} or None,
            sum(part.judged for part in parts),
        )

    @property
    def worst(self) -> tuple[int, float]:
        """Place and margin of the token with the greatest margin."""
        margins: Sequence[float] = self.margins or (0.0,)
        place = max(range(len(margins)), key=margins.__getitem__)
        return place, margins[place]


def split_audit(
    request: EngineRequest, answer: Sequence[int], dtype: str, max_tokens: int | None = PIECE
) -> Iterator[tuple[EngineRequest, str]]:
    """Yield the requests that make an engine score ``answer``, and the keys of their scores. Each
    must wait for the one before it, and has no key if it reads only a part of the prompt.

    The engine reads the prompt and the answer without its last token as a prompt, at most
    ``max_tokens`` tokens at a time. None reads all at once, for engines without a prefix cache.
    A prompt with images is read at once, because each piece must have all of them. Each piece
    generates one token, which is ignored. The pieces have their own cache salt, so that
    they find only each other's blocks, because a fault in cached blocks must not reach the audit.
    """
    name = uuid.uuid4().hex
    tokens = (*request.prompt, *answer[:-1])
    prompt_end = len(request.prompt) - 1
    first = len(request.prompt) if request.images else 0
    count = 1 if max_tokens is None else max(1, -(-(len(tokens) - first) // max_tokens))
    begin = 0
    for number in range(1, count + 1):
        end = first + (len(tokens) - first) * number // count
        start, stop = max(0, begin - prompt_end), max(0, end - prompt_end)
        key = f"{name}-{number}" if stop else ""
        audit = _make_request(request, tokens[:end], name, number)
        if request.images:
            length = request.num_prompt - len(request.prompt) + end
            audit = replace(audit, images=request.images, expanded_length=length)
        if key:
            rules = ScoringRules.of(request, answer[stop - 1], dtype, start)
            audit = replace(audit, scoring={"key": key, **rules.to_fields()})
        yield audit, key
        begin = end


def _make_request(
    request: EngineRequest, prompt: tuple[int, ...], name: str, number: int
) -> EngineRequest:
    s = request.sampling
    sampling = Sampling(
        max_tokens=1,
        temperature=0.0,
        stop_token_ids=s.stop_token_ids,
        ignore_eos=s.ignore_eos,
        bad_words=s.bad_words,
    )
    return EngineRequest(
        id=f"audit-{name}-{number}",
        prompt=prompt,
        sampling=sampling,
        depth=0,
        priority=LAST_PRIORITY,
        workload=request.workload,
        tenant=request.tenant,
        cache_salt=f"audit-{name}",
        adapter=request.adapter,
    )


class AuditPace:
    """Pace of an audit. This one waits for nothing and charges nobody."""

    async def pause(self) -> None:
        """Wait for room before a piece of the audit. May raise."""

    def charge(self, seconds: float) -> None:
        """Charge the time for which the engine had a piece, without that of preparing it."""


UNPACED = AuditPace()


class ScoresAnswers(Protocol):
    """An engine that can score an answer with the target alone."""

    async def score(
        self,
        request: EngineRequest,
        answer: Sequence[int],
        dtype: str,
        pace: AuditPace = UNPACED,
    ) -> AnswerScores:
        """Score the tokens of an answer to ``request``, without a draft and without blocks that
        other requests cached.

        Raises EngineError, and any exception of ``pace``.
        """
        ...
