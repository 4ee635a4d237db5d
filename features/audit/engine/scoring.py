"""Scoring of an answer's tokens against the target's raw logits, in plain tensors.

It is written from the meaning of each sampling field, without vLLM's samplers or the repairs in
``engine/vllm_backend/patches/``, because an audit must not share their faults. The order is:
allowed tokens, bad words, minimum of tokens, biases, repetition, frequency and presence penalties,
temperature, min-p, top-k, top-p.

Rounding moves a logit slightly, and so moves the borders of min-p, top-k and top-p. A token is
*surely* in if rounding cannot exclude it, and *possibly* in if rounding may include it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch

from eaglegate.engine.speculation.accounts.scores import AnswerScores, Choosing, ScoringRules
from eaglegate.engine.vllm_backend.position_noise import add_noise
from eaglegate.features.audit.likelihood import (
    ANY_SHARES,
    BEST_SHARES,
    COLDER_FACTOR,
    HOTTER_FACTOR,
    IMPOSSIBLE,
    MAX_DOUBT,
    SKEW,
)

MAX_LOGITS = 1 << 22
"""Number of logits that are scored at a time, so that the sorted copies stay small."""
MIXTURE_SHARE = 0.25
"""Share of tokens drawn at another temperature, as for good drafts that were not verified."""
WINDOW = log(3)
"""Distance from the best token, in nats, within which a lossy acceptance takes any draft."""
WINDOW_SHARES = (0.2, 0.6)
"""Shares of tokens drawn from that window only, as for drafts accepted with a loss."""
FAMILIES = (
    "colder", "hotter", "partly colder", "partly hotter", "temperature ignored", "rules ignored",
    *(f"first choice {share:g}" for share in BEST_SHARES),
    *(f"lossy window {share:g}" for share in WINDOW_SHARES),
    *(f"any token {share:g}" for share in ANY_SHARES),
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
    def scored_positions(self) -> range:
        """Positions whose logits choose a token to score, each one before its token."""
        offset = len(self.prompt) - 1
        return range(offset + self.rules.first, offset + len(self.output))


class AnswerScorer:
    """Scorer of one answer. Logits come in chunks, in any order, and again after a preemption."""

    def __init__(self, tokens: AuditedTokens) -> None:
        self._tokens = tokens
        self._rows: dict[int, tuple[float, int, list[float], int]] = {}
        """(Margin, best token, evidence, 1 if judged) by place in the answer."""

    def add(self, place: int, logits: torch.Tensor) -> None:
        """Score rows of ``logits`` (rows, vocabulary), which choose the answer's tokens from
        ``place`` on."""
        rows = max(1, MAX_LOGITS // logits.shape[1])
        for begin in range(0, len(logits), rows):
            self._add(place + begin, logits[begin : begin + rows].float())

    def _add(self, place: int, raw_logits: torch.Tensor) -> None:
        tokens, rules = self._tokens, self._tokens.rules
        choices = torch.tensor(
            [*tokens.output[place : place + len(raw_logits)]], device=raw_logits.device
        ).unsqueeze(1)
        logits = apply_rules(raw_logits.clone(), place, tokens)
        match rules.choosing:
            case Choosing.GREEDY:
                margins, best_tokens = measure_margins(logits, choices)
            case Choosing.SEEDED:
                margins, best_tokens = self._score_seeded(place, logits, choices)
            case Choosing.SAMPLED:
                self._score_sampled(place, raw_logits, logits, choices)
                return
        rows = zip(margins.tolist(), best_tokens.tolist(), strict=True)
        for index, (margin, token) in enumerate(rows, place):
            self._rows[index] = margin, token, [], 0

    def _score_seeded(
        self, place: int, logits: torch.Tensor, choices: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rules = self._tokens.rules
        scaled_logits = logits / rules.temperature
        sure_mask, possible_mask = find_kept(scaled_logits, rules)
        first_position = len(self._tokens.prompt) - 1 + place
        positions = torch.arange(first_position, first_position + len(logits), device=logits.device)
        seeds = torch.full_like(positions, rules.seed or 0)
        scores = add_noise(scaled_logits, seeds, positions)
        choice_scores = scores.gather(1, choices)
        best_scores, best_tokens = scores.masked_fill(~sure_mask, -torch.inf).max(-1)
        margins = ((best_scores - choice_scores[:, 0]) * rules.temperature).clamp_(min=0.0)
        return margins.masked_fill_(~possible_mask.gather(1, choices)[:, 0], torch.inf), best_tokens

    def _score_sampled(
        self, place: int, raw_logits: torch.Tensor, logits: torch.Tensor, choices: torch.Tensor
    ) -> None:
        rules = self._tokens.rules
        scaled_logits = logits / rules.temperature
        sure_mask, possible_mask = find_kept(scaled_logits, rules)
        is_excluded = ~possible_mask.gather(1, choices)[:, 0]
        kept_logits = scaled_logits.masked_fill(~possible_mask, -torch.inf)
        doubt = kept_logits.logsumexp(-1) - scaled_logits.masked_fill(
            ~sure_mask, -torch.inf
        ).logsumexp(-1)
        is_judged = ~is_excluded & (doubt <= MAX_DOUBT)
        changes_logits = bool(rules.bias_tokens or rules.min_tokens) or (
            rules.presence_penalty or rules.frequency_penalty or rules.repetition_penalty != 1.0
        )
        spread = draw_spread(place, len(raw_logits), self._tokens).to(raw_logits.device)
        ratios = measure_evidence(
            kept_logits, choices, rules, raw_logits if changes_logits else None, spread
        )
        ratios = (ratios - doubt.unsqueeze(1)).masked_fill(~is_judged.unsqueeze(1), 0.0)
        rows = zip(is_excluded.tolist(), ratios.tolist(), is_judged.tolist(), strict=True)
        for index, (is_out, evidence, is_counted) in enumerate(rows, place):
            self._rows[index] = (float("inf") if is_out else 0.0), 0, evidence, int(is_counted)

    @property
    def is_complete(self) -> bool:
        return len(self._rows) == len(self._tokens.scored_positions)

    def finish(self) -> AnswerScores:
        """Return the scores of the whole answer. Raises ValueError if logits are missing."""
        if not self.is_complete:
            raise ValueError(
                f"{len(self._rows)} of {len(self._tokens.scored_positions)} tokens were scored"
            )
        rows = [self._rows[index] for index in sorted(self._rows)]
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
        forbidden_mask = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        forbidden_mask[list(rules.allowed)] = False
        logits.masked_fill_(forbidden_mask, -torch.inf)
    _forbid_bad_words(logits, place, tokens)
    if (num_early := rules.min_tokens - place) > 0 and tokens.stops:
        logits[:num_early, list(tokens.stops)] = -torch.inf
    if rules.bias_tokens:
        bias = torch.tensor(rules.bias_values, device=logits.device, dtype=logits.dtype)
        logits[:, list(rules.bias_tokens)] += bias
    return _apply_penalties(logits, place, tokens)


def _forbid_bad_words(logits: torch.Tensor, place: int, tokens: AuditedTokens) -> None:
    for *prefix, last_token in tokens.bad_words:
        for row in range(len(logits)):
            output = tokens.output[: place + row]
            if len(prefix) <= len(output) and [*output[len(output) - len(prefix) :]] == prefix:
                logits[row, last_token] = -torch.inf


def _apply_penalties(logits: torch.Tensor, place: int, tokens: AuditedTokens) -> torch.Tensor:
    rules = tokens.rules
    if not (rules.presence_penalty or rules.frequency_penalty or rules.repetition_penalty != 1.0):
        return logits
    vocabulary, device = logits.shape[1], logits.device
    counts = _count(tokens.output[:place], vocabulary, device).repeat(len(logits), 1)
    for row, token in enumerate(tokens.output[place : place + len(logits) - 1], 1):
        counts[row:, token] += 1
    if rules.repetition_penalty != 1.0:
        occurs = (counts > 0) | (_count(tokens.prompt, vocabulary, device) > 0)
        weaker_logits = torch.where(
            logits > 0, logits / rules.repetition_penalty, logits * rules.repetition_penalty
        )
        logits = torch.where(occurs, weaker_logits, logits)
    return logits - rules.frequency_penalty * counts - rules.presence_penalty * (counts > 0)


def _count(tokens: Sequence[int], vocabulary: int, device: torch.device) -> torch.Tensor:
    token_ids = torch.tensor([*tokens], dtype=torch.int64, device=device)
    return torch.bincount(token_ids, minlength=vocabulary)[:vocabulary].float()


def measure_margins(
    logits: torch.Tensor, choices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the margin of each row's best token over the chosen one, and the best token."""
    best_logits, best_tokens = logits.max(-1)
    choice_logits = logits.gather(1, choices)[:, 0]
    return torch.where(
        choice_logits == -torch.inf, torch.inf, best_logits - choice_logits
    ), best_tokens


def find_kept(
    scaled_logits: torch.Tensor, rules: ScoringRules
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that min-p, top-k and top-p surely keep, and the tokens that they possibly
    keep."""
    allowed_mask = scaled_logits > -torch.inf
    top_k = rules.top_k if 0 < rules.top_k < scaled_logits.shape[1] else 0
    if not (rules.min_p or top_k or rules.top_p < 1):
        return allowed_mask, allowed_mask
    tolerance = rules.tie / rules.temperature
    values, order = scaled_logits.sort(-1, descending=True)
    sure_mask = possible_mask = values > -torch.inf
    if rules.min_p:
        threshold = values[:, :1] + log(rules.min_p)
        sure_mask, possible_mask = (
            sure_mask & (values >= threshold + tolerance),
            possible_mask & (values >= threshold - tolerance),
        )
    if top_k:
        last_value, next_value = values[:, top_k - 1 : top_k], values[:, top_k : top_k + 1]
        sure_mask, possible_mask = (
            sure_mask & (values > next_value + tolerance),
            possible_mask & (values >= last_value - tolerance),
        )
    sure_mask[:, 0] = True
    if rules.top_p < 1:
        sure_mask, possible_mask = _keep_mass(
            values, sure_mask, possible_mask, rules.top_p, tolerance
        )
    ranks = order.argsort(-1)
    return sure_mask.gather(1, ranks), possible_mask.gather(1, ranks)


def _keep_mass(
    values: torch.Tensor,
    sure_mask: torch.Tensor,
    possible_mask: torch.Tensor,
    top_p: float,
    tolerance: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply top-p: a token is kept while likelier tokens have less than ``top_p`` of the mass.

    ``values`` are sorted, the likeliest first. Tokens closer than ``tolerance`` may change places.
    """
    weights = (values - values[:, :1]).exp()
    error = min(0.5, tolerance / 4) + 1e-5
    min_mass = _accumulate(weights.masked_fill(~sure_mask, 0.0))
    max_mass = _accumulate(weights.masked_fill(~possible_mask, 0.0))
    negatives = (-values).contiguous()
    begins = torch.searchsorted(negatives, (negatives - tolerance).contiguous())
    ends = torch.searchsorted(negatives, (negatives + tolerance).contiguous(), right=True)
    min_before = max_mass.gather(1, begins) / max_mass[:, -1:]
    sure_weights = weights.masked_fill(~sure_mask, 0.0)
    max_before = (min_mass.gather(1, ends) - sure_weights) / min_mass[:, -1:]
    possible_nucleus = possible_mask & (min_before < top_p + error)
    sure_nucleus = sure_mask & (max_before < top_p - error)
    sure_nucleus[:, 0] = True
    return sure_nucleus, possible_nucleus


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
    kept_logits: torch.Tensor,
    choices: torch.Tensor,
    rules: ScoringRules,
    raw_logits: torch.Tensor | None,
    spread: torch.Tensor,
) -> torch.Tensor:
    """Return log likelihood ratios of ``FAMILIES`` (rows, families) for the drawn tokens.

    ``kept_logits`` are scaled, -inf where excluded. ``raw_logits`` are those before any rule, if a
    rule changes them. Rounding makes the true probability of a token differ from the one known
    here. Its mean over such errors exceeds it by at most the factor exp(s**2), for errors of s
    nats, which is subtracted from every ratio.
    """
    logprobs = kept_logits.log_softmax(-1)
    choice_logprobs = logprobs.gather(1, choices)
    best_logprobs = logprobs.amax(-1, keepdim=True)
    size = (kept_logits > -torch.inf).sum(-1, keepdim=True).float()
    columns = [
        _tempered(logprobs, choices, 1 / factor) - choice_logprobs
        for factor in (COLDER_FACTOR, HOTTER_FACTOR)
    ]
    columns += [((1 - MIXTURE_SHARE) + MIXTURE_SHARE * column.exp()).log() for column in columns]
    power = rules.temperature if abs(rules.temperature - 1) > 0.05 else None
    zeros = torch.zeros_like(choice_logprobs)
    columns.append(_tempered(logprobs, choices, power) - choice_logprobs if power else zeros)
    columns.append(
        zeros if raw_logits is None else _ignore_rules(raw_logits, choices, rules) - choice_logprobs
    )
    num_best = (logprobs == best_logprobs).sum(-1, keepdim=True)
    for share in BEST_SHARES:
        columns.append(
            (
                (1 - share)
                + share * (choice_logprobs == best_logprobs) * (-best_logprobs).exp() / num_best
            ).log()
        )
    window_mask = logprobs >= best_logprobs - WINDOW
    mass = logprobs.exp().masked_fill(~window_mask, 0.0).sum(-1, keepdim=True)
    is_inside = window_mask.gather(1, choices)
    for share in WINDOW_SHARES:
        columns.append(((1 - share) + share * is_inside / mass).log())
    for share in ANY_SHARES:
        columns.append(((1 - share) + share * (-choice_logprobs).exp() / size).log())
    mass_before = logprobs.exp().masked_fill(logprobs <= choice_logprobs, 0.0).sum(-1, keepdim=True)
    tie_mass = (logprobs == choice_logprobs).sum(-1, keepdim=True) * choice_logprobs.exp()
    quantile = (mass_before + spread.unsqueeze(1) * tie_mass).clamp_(1e-9, 1 - 1e-7)
    columns += [_skewed(quantile), _skewed(1 - quantile)]
    error = (rules.tie / 2 / rules.temperature) ** 2
    return torch.cat(columns, 1).nan_to_num_(neginf=IMPOSSIBLE) - error


def _skewed(quantile: torch.Tensor) -> torch.Tensor:
    """Return the log density of Beta(``SKEW``, 1)."""
    return log(SKEW) + (SKEW - 1) * quantile.log()


def _tempered(logprobs: torch.Tensor, choices: torch.Tensor, power: float) -> torch.Tensor:
    """Return the log probability of the chosen tokens if all are raised to ``power``."""
    powers = logprobs * power
    return powers.gather(1, choices) - powers.logsumexp(-1, keepdim=True)


def _ignore_rules(
    raw_logits: torch.Tensor, choices: torch.Tensor, rules: ScoringRules
) -> torch.Tensor:
    return (raw_logits / rules.temperature).log_softmax(-1).gather(1, choices)
