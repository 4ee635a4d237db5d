"""Scoring of an answer's tokens against the target's raw logits, in plain tensors.

It is written from the meaning of each sampling field, without vLLM's samplers or the repairs in
``steering.py``, because an audit must not share their faults. The order is: allowed tokens, bad
words, minimum of tokens, biases, repetition, frequency and presence penalties, temperature, min-p,
top-k, top-p.

Rounding moves a logit slightly, and so moves the borders of min-p, top-k and top-p. A token is
*surely* in if rounding cannot exclude it, and *possibly* in if rounding may include it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch

from eaglegate.engine.speculation.scores import AnswerScores, Choosing, ScoringRules
from eaglegate.engine.vllm_backend.position_noise import add_noise

ROWS = 1 << 22
"""Number of logits that are scored at a time, so that the sorted copies stay small."""
COLDER, HOTTER = 0.6, 1.6
"""Factors of a wrong temperature relative to the request's."""
PART = 0.25
"""Share of tokens drawn at another temperature, as for good drafts that were not verified."""
ALWAYS_BEST = (0.1, 0.5)
"""Shares of tokens that are the target's first choice and not drawn, as for unverified drafts."""
WINDOW = log(3)
"""Distance from the best token, in nats, within which a lossy acceptance takes any draft."""
IN_WINDOW = (0.2, 0.6)
"""Shares of tokens drawn from that window only, as for drafts accepted with a loss."""
ANY = (0.02, 0.2)
"""Shares of arbitrary tokens."""
MOST_DOUBT = 0.05
"""Greatest logarithm of possible over sure mass at which a sampled token is judged. The true
probability of a token exceeds the computed one by at most this factor, which is subtracted from
every ratio.
"""
SKEW = 0.7
"""Shape of the beta densities for tokens that are too likely, or not likely enough."""
FAMILIES = (
    "colder", "hotter", "partly colder", "partly hotter", "temperature ignored", "rules ignored",
    *(f"first choice {share:g}" for share in ALWAYS_BEST),
    *(f"lossy window {share:g}" for share in IN_WINDOW),
    *(f"any token {share:g}" for share in ANY),
    "too likely", "too unlikely",
)  # fmt: skip
"""Kinds of faults in sampled answers, by their likelihood ratios."""


@dataclass(frozen=True, slots=True)
class AuditedTokens:
    """An answer's tokens in the worker's representation."""

    rules: ScoringRules
    prompt: Sequence[int]
    output: Sequence[int]
    stops: Sequence[int] = ()
    """Tokens that ``min_tokens`` forbids."""
    bad_words: Sequence[Sequence[int]] = ()

    @property
    def needed(self) -> range:
        """Positions whose logits choose a token to score, each one before its token."""
        before = len(self.prompt) - 1
        return range(before + self.rules.first, before + len(self.output))


class AnswerScorer:
    """Scorer of one answer. Logits come in chunks, in any order, and again after a preemption."""

    def __init__(self, tokens: AuditedTokens) -> None:
        self._tokens = tokens
        self._rows: dict[int, tuple[float, int, list[float], int]] = {}
        """(Margin, best token, evidence, 1 if judged) by place in the answer."""

    def add(self, place: int, logits: torch.Tensor) -> None:
        """Score rows of ``logits`` (rows, vocabulary), which choose the answer's tokens from
        ``place`` on."""
        rows = max(1, ROWS // logits.shape[1])
        for begin in range(0, len(logits), rows):
            self._add(place + begin, logits[begin : begin + rows].float())

    def _add(self, place: int, raw: torch.Tensor) -> None:
        tokens, rules = self._tokens, self._tokens.rules
        chosen = torch.tensor(
            [*tokens.output[place : place + len(raw)]], device=raw.device
        ).unsqueeze(1)
        logits = apply_rules(raw.clone(), place, tokens)
        match rules.choosing:
            case Choosing.GREEDY:
                margins, best = measure_margins(logits, chosen)
            case Choosing.SEEDED:
                margins, best = self._score_seeded(place, logits, chosen)
            case Choosing.SAMPLED:
                self._score_sampled(place, raw, logits, chosen)
                return
        rows = zip(margins.tolist(), best.tolist(), strict=True)
        for at, (margin, token) in enumerate(rows, place):
            self._rows[at] = margin, token, [], 0

    def _score_seeded(
        self, place: int, logits: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rules = self._tokens.rules
        scaled = logits / rules.temperature
        sure, possible = find_kept(scaled, rules)
        first = len(self._tokens.prompt) - 1 + place
        positions = torch.arange(first, first + len(logits), device=logits.device)
        seeds = torch.full_like(positions, rules.seed or 0)
        noisy = add_noise(scaled, seeds, positions)
        own = noisy.gather(1, chosen)
        most, best = noisy.masked_fill(~sure, -torch.inf).max(-1)
        margins = ((most - own[:, 0]) * rules.temperature).clamp_(min=0.0)
        return margins.masked_fill_(~possible.gather(1, chosen)[:, 0], torch.inf), best

    def _score_sampled(
        self, place: int, raw: torch.Tensor, logits: torch.Tensor, chosen: torch.Tensor
    ) -> None:
        rules = self._tokens.rules
        scaled = logits / rules.temperature
        sure, possible = find_kept(scaled, rules)
        excluded = ~possible.gather(1, chosen)[:, 0]
        kept = scaled.masked_fill(~possible, -torch.inf)
        doubt = kept.logsumexp(-1) - scaled.masked_fill(~sure, -torch.inf).logsumexp(-1)
        judged = ~excluded & (doubt <= MOST_DOUBT)
        changed = bool(rules.bias_tokens or rules.min_tokens) or (
            rules.presence_penalty or rules.frequency_penalty or rules.repetition_penalty != 1.0
        )
        spread = draw_spread(place, len(raw), self._tokens).to(raw.device)
        ratios = measure_evidence(kept, chosen, rules, raw if changed else None, spread)
        ratios = (ratios - doubt.unsqueeze(1)).masked_fill(~judged.unsqueeze(1), 0.0)
        rows = zip(excluded.tolist(), ratios.tolist(), judged.tolist(), strict=True)
        for at, (out, evidence, counted) in enumerate(rows, place):
            self._rows[at] = (float("inf") if out else 0.0), 0, evidence, int(counted)

    @property
    def is_complete(self) -> bool:
        return len(self._rows) == len(self._tokens.needed)

    def finish(self) -> AnswerScores:
        """Return the scores of the whole answer. Raises ValueError if logits are missing."""
        if not self.is_complete:
            raise ValueError(f"{len(self._rows)} of {len(self._tokens.needed)} tokens were scored")
        rows = [self._rows[at] for at in sorted(self._rows)]
        margins = tuple(row[0] for row in rows)
        if self._tokens.rules.choosing is not Choosing.SAMPLED:
            return AnswerScores(margins, tuple(row[1] for row in rows))
        sums = [sum(ratios) for ratios in zip(*(row[2] for row in rows), strict=True)]
        evidence = dict(zip(FAMILIES, sums, strict=True))
        return AnswerScores(margins, (), evidence, sum(row[3] for row in rows))


def apply_rules(logits: torch.Tensor, place: int, tokens: AuditedTokens) -> torch.Tensor:
    """Apply the rules that change or forbid tokens before the temperature, in place.

    Row ``i`` chooses the answer's token ``place + i``.
    """
    rules = tokens.rules
    if rules.allowed:
        forbidden = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        forbidden[list(rules.allowed)] = False
        logits.masked_fill_(forbidden, -torch.inf)
    _forbid_bad_words(logits, place, tokens)
    if (short := rules.min_tokens - place) > 0 and tokens.stops:
        logits[:short, list(tokens.stops)] = -torch.inf
    if rules.bias_tokens:
        bias = torch.tensor(rules.bias_values, device=logits.device, dtype=logits.dtype)
        logits[:, list(rules.bias_tokens)] += bias
    return _apply_penalties(logits, place, tokens)


def _forbid_bad_words(logits: torch.Tensor, place: int, tokens: AuditedTokens) -> None:
    for *before, last in tokens.bad_words:
        for row in range(len(logits)):
            written = tokens.output[: place + row]
            if len(before) <= len(written) and [*written[len(written) - len(before) :]] == before:
                logits[row, last] = -torch.inf


def _apply_penalties(logits: torch.Tensor, place: int, tokens: AuditedTokens) -> torch.Tensor:
    rules = tokens.rules
    if not (rules.presence_penalty or rules.frequency_penalty or rules.repetition_penalty != 1.0):
        return logits
    vocabulary, device = logits.shape[1], logits.device
    counts = _count(tokens.output[:place], vocabulary, device).repeat(len(logits), 1)
    for row, token in enumerate(tokens.output[place : place + len(logits) - 1], 1):
        counts[row:, token] += 1
    if rules.repetition_penalty != 1.0:
        seen = (counts > 0) | (_count(tokens.prompt, vocabulary, device) > 0)
        weaker = torch.where(
            logits > 0, logits / rules.repetition_penalty, logits * rules.repetition_penalty
        )
        logits = torch.where(seen, weaker, logits)
    return logits - rules.frequency_penalty * counts - rules.presence_penalty * (counts > 0)


def _count(tokens: Sequence[int], vocabulary: int, device: torch.device) -> torch.Tensor:
    given = torch.tensor([*tokens], dtype=torch.int64, device=device)
    return torch.bincount(given, minlength=vocabulary)[:vocabulary].float()


def measure_margins(
    logits: torch.Tensor, chosen: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the margin of each row's best token over the chosen one, and the best token."""
    most, best = logits.max(-1)
    own = logits.gather(1, chosen)[:, 0]
    return torch.where(own == -torch.inf, torch.inf, most - own), best


def find_kept(scaled: torch.Tensor, rules: ScoringRules) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that min-p, top-k and top-p surely keep, and the tokens that they possibly
    keep."""
    allowed = scaled > -torch.inf
    top_k = rules.top_k if 0 < rules.top_k < scaled.shape[1] else 0
    if not (rules.min_p or top_k or rules.top_p < 1):
        return allowed, allowed
    near = rules.tie / rules.temperature
    values, order = scaled.sort(-1, descending=True)
    sure = possible = values > -torch.inf
    if rules.min_p:
        least = values[:, :1] + log(rules.min_p)
        sure, possible = sure & (values >= least + near), possible & (values >= least - near)
    if top_k:
        kept, cut = values[:, top_k - 1 : top_k], values[:, top_k : top_k + 1]
        sure, possible = sure & (values > cut + near), possible & (values >= kept - near)
    sure[:, 0] = True
    if rules.top_p < 1:
        sure, possible = _keep_mass(values, sure, possible, rules.top_p, near)
    where = order.argsort(-1)
    return sure.gather(1, where), possible.gather(1, where)


def _keep_mass(
    values: torch.Tensor, sure: torch.Tensor, possible: torch.Tensor, top_p: float, near: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply top-p: a token is kept while likelier tokens have less than ``top_p`` of the mass.

    ``values`` are sorted, the likeliest first. Tokens closer than ``near`` may change places.
    """
    weights = (values - values[:, :1]).exp()
    error = min(0.5, near / 4) + 1e-5
    fewest = _accumulate(weights.masked_fill(~sure, 0.0))
    most = _accumulate(weights.masked_fill(~possible, 0.0))
    falling = (-values).contiguous()
    above = torch.searchsorted(falling, (falling - near).contiguous())
    beside = torch.searchsorted(falling, (falling + near).contiguous(), right=True)
    least_before = most.gather(1, above) / most[:, -1:]
    own = weights.masked_fill(~sure, 0.0)
    most_before = (fewest.gather(1, beside) - own) / fewest[:, -1:]
    stays = possible & (least_before < top_p + error)
    firm = sure & (most_before < top_p - error)
    firm[:, 0] = True
    return firm, stays


def _accumulate(weights: torch.Tensor) -> torch.Tensor:
    """Return the mass before each place, and the whole mass as the last column."""
    return torch.nn.functional.pad(weights.cumsum(-1), (1, 0))


def draw_spread(place: int, rows: int, tokens: AuditedTokens) -> torch.Tensor:
    """Return a uniform number for each row, which spreads a token's share of the distribution.

    The numbers depend on the answer itself, so that an audit can be repeated.
    """
    start = hash((tuple(tokens.output[:8]), len(tokens.prompt), len(tokens.output)))
    generator = torch.Generator().manual_seed(start % (1 << 63))
    return torch.rand(place + rows, generator=generator)[place:]


def measure_evidence(
    kept: torch.Tensor,
    chosen: torch.Tensor,
    rules: ScoringRules,
    raw: torch.Tensor | None,
    spread: torch.Tensor,
) -> torch.Tensor:
    """Return log likelihood ratios of ``FAMILIES`` (rows, families) for the drawn tokens.

    ``kept`` are scaled logits, -inf where excluded. ``raw`` are logits before any rule, if a rule
    changes them. Rounding makes the true probability of a token differ from the one known here. Its
    mean over such errors exceeds it by at most the factor exp(s**2), for errors of s nats, which is
    subtracted from every ratio.
    """
    logprobs = kept.log_softmax(-1)
    own = logprobs.gather(1, chosen)
    best = logprobs.amax(-1, keepdim=True)
    size = (kept > -torch.inf).sum(-1, keepdim=True).float()
    columns = [_tempered(logprobs, chosen, 1 / factor) - own for factor in (COLDER, HOTTER)]
    columns += [((1 - PART) + PART * column.exp()).log() for column in columns]
    ignored = rules.temperature if abs(rules.temperature - 1) > 0.05 else None
    zero = torch.zeros_like(own)
    columns.append(_tempered(logprobs, chosen, ignored) - own if ignored else zero)
    columns.append(zero if raw is None else _ignore_rules(raw, chosen, rules) - own)
    firsts = (logprobs == best).sum(-1, keepdim=True)
    for share in ALWAYS_BEST:
        columns.append(((1 - share) + share * (own == best) * (-best).exp() / firsts).log())
    near = logprobs >= best - WINDOW
    mass = logprobs.exp().masked_fill(~near, 0.0).sum(-1, keepdim=True)
    inside = near.gather(1, chosen)
    for share in IN_WINDOW:
        columns.append(((1 - share) + share * inside / mass).log())
    for share in ANY:
        columns.append(((1 - share) + share * (-own).exp() / size).log())
    before = logprobs.exp().masked_fill(logprobs <= own, 0.0).sum(-1, keepdim=True)
    ties = (logprobs == own).sum(-1, keepdim=True) * own.exp()
    place = (before + spread.unsqueeze(1) * ties).clamp_(1e-9, 1 - 1e-7)
    columns += [_skewed(place), _skewed(1 - place)]
    error = (rules.tie / 2 / rules.temperature) ** 2
    return torch.cat(columns, 1).nan_to_num_(neginf=-1e6) - error


def _skewed(place: torch.Tensor) -> torch.Tensor:
    """Return the log density of Beta(``SKEW``, 1)."""
    return log(SKEW) + (SKEW - 1) * place.log()


def _tempered(logprobs: torch.Tensor, chosen: torch.Tensor, power: float) -> torch.Tensor:
    """Return the log probability of the chosen tokens if all are raised to ``power``."""
    raised = logprobs * power
    return raised.gather(1, chosen) - raised.logsumexp(-1, keepdim=True)


def _ignore_rules(raw: torch.Tensor, chosen: torch.Tensor, rules: ScoringRules) -> torch.Tensor:
    return (raw / rules.temperature).log_softmax(-1).gather(1, chosen)
