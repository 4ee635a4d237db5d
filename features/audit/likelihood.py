"""Scores of an answer's tokens from the log probabilities of the likeliest tokens at each place.

A worker tells, for each place, the chosen token's log probability and those of the ``ALTERNATIVES``
likeliest tokens, before any rule. That decides every greedy token. It gives the distribution of a
sampled token where no truncation applies and the temperature is 1, and where top-k or top-p keep
only tokens among the alternatives. Other tokens are not judged.

The kinds of faults, and their sizes, are those of ``features/audit/engine/scoring.py``, which has
all logits. The tokens beside the alternatives are one class here, of known mass and size. Their
densities under a fault are bounded from below, so that a ratio has a mean of at most 1 as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from eaglegate.engine.speculation.accounts.scores import AnswerScores, ScoringRules
from eaglegate.engine.types import EngineRequest, PositionLogprobs

ALTERNATIVES = 20
"""Most alternatives that vLLM gives by default (``--max-logprobs``)."""
COLDER_FACTOR, HOTTER_FACTOR = 0.6, 1.6
"""Factors of a wrong temperature relative to the request's."""
TEMPERED = {"colder": 1 / COLDER_FACTOR, "hotter": 1 / HOTTER_FACTOR}
"""Powers of the distribution under a wrong temperature."""
BEST_SHARES = (0.1, 0.5)
"""Shares of tokens that are the target's first choice and not drawn, as for unverified drafts."""
ANY_SHARES = (0.02, 0.2)
"""Shares of arbitrary tokens."""
SKEW = 0.7
"""Shape of the beta densities for tokens that are too likely, or not likely enough."""
MAX_DOUBT = 0.05
"""Greatest logarithm of possible over sure mass at which a sampled token is judged. The true
probability of a token exceeds the computed one by at most this factor, which is subtracted from
every ratio.
"""
IMPOSSIBLE = -1e6
"""Logarithm that stands for that of 0."""


def explain_unscorable(request: EngineRequest) -> str | None:
    """Return the reason why alternatives cannot decide the answers to a request; None if they
    can."""
    s = request.sampling
    rules = ScoringRules.of(request, 0, "")
    if request.images:
        return "images"
    if rules.seed is not None:
        return "seed"
    if s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0:
        return "penalties"
    if s.logit_bias or s.allowed_token_ids or s.bad_words or s.min_tokens:
        return "rules"
    if rules.min_p or (rules.temperature not in (0.0, 1.0) and not 0 < rules.top_k <= ALTERNATIVES):
        return "distribution"
    return None


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of one token, as far as it is known."""

    logprobs: Sequence[float]
    """Log probabilities of tokens under the rules, the likeliest first."""
    choice: float
    """That of the chosen token."""
    is_listed: bool
    """True if the chosen token is one of ``logprobs``."""
    size: int
    """Number of tokens that may be chosen."""
    tail: float = 0.0
    """Probability of the tokens that are not listed."""
    doubt: float = 0.0
    """Greatest error of a log probability from tokens at the border of a truncation."""

    def temper(self, power: float) -> float:
        """Return at most the log probability of the chosen token if all are raised to ``power``."""
        total = sum(math.exp(power * value) for value in self.logprobs)
        if self.tail:
            # The most that the tail can weigh: all at its greatest value, or all alike.
            count = max(1, self.size - len(self.logprobs))
            peaked = self.tail * math.exp((power - 1) * self.logprobs[-1])
            total += peaked if power > 1 else self.tail**power * count ** (1 - power)
        return power * self.choice - math.log(total)


def find_distribution(
    place: PositionLogprobs, rules: ScoringRules, vocab_size: int
) -> Distribution | None:
    """Return the distribution from which the chosen token was drawn; None if it is not known.

    Raises ValueError if the rules surely exclude the token.
    """
    values = sorted((entry.logprob for entry in place.top), reverse=True)
    is_listed = any(entry.token_id == place.chosen.token_id for entry in place.top)
    if not rules.top_k and rules.top_p >= 1:
        tail = max(1e-9, 1 - sum(map(math.exp, values)))
        return Distribution(values, place.chosen.logprob, is_listed, vocab_size, tail)
    # Only an open nucleus needs the values themselves; others could be too small to add up.
    shift = 0.0 if rules.temperature == 1.0 else values[0]
    scaled = [(value - shift) / rules.temperature for value in values]
    choice = (place.chosen.logprob - shift) / rules.temperature
    tolerance = rules.tie / rules.temperature
    border = find_border(scaled, rules, tolerance)
    if border is None:
        return None
    sure, possible = border
    kept = [value for value in scaled if value >= possible]
    if choice < possible:
        raise ValueError("the rules exclude the token")
    total = math.log(sum(map(math.exp, kept)))
    sure_mass = sum(math.exp(value) for value in scaled if value >= min(sure, scaled[0]))
    doubt = total - math.log(sure_mass)
    if not is_listed or doubt > MAX_DOUBT:
        return None
    logprobs = [value - total for value in kept]
    return Distribution(logprobs, choice - total, is_listed, len(kept), doubt=doubt)


def find_border(
    scaled: Sequence[float], rules: ScoringRules, tolerance: float
) -> tuple[float, float] | None:
    """Return the values from which tokens are surely and possibly kept; None if tokens beside the
    alternatives may be kept as well. ``scaled`` are sorted, the largest first."""
    sure, possible, is_closed = -math.inf, -math.inf, 0 < rules.top_k <= len(scaled)
    if is_closed:
        last = scaled[rules.top_k - 1]
        following = scaled[rules.top_k] if rules.top_k < len(scaled) else last
        sure, possible = following + tolerance, last - tolerance
    if rules.top_p >= 1:
        return (sure, possible) if is_closed else None
    error = min(0.5, tolerance / 4) + 1e-5
    pairs = [(value, math.exp(value)) for value in scaled]
    most = sum(weight for value, weight in pairs if value >= possible) if is_closed else 1.0
    least = sum(weight for value, weight in pairs if value >= sure) if is_closed else 1.0
    sure_nucleus = possible_nucleus = scaled[0]
    # Top-p keeps a token while likelier ones have less of the mass. Tokens closer than the
    # tolerance may change places.
    for value, weight in pairs:
        before = sum(other for place, other in pairs if place > value + tolerance)
        if before >= (rules.top_p + error) * most:
            is_closed = True
            break
        possible_nucleus = value
        near = sum(other for place, other in pairs if place >= value - tolerance)
        if near - weight < (rules.top_p - error) * least:
            sure_nucleus = value
    return (max(sure, sure_nucleus), max(possible, possible_nucleus)) if is_closed else None


def weigh_faults(
    spread: Distribution, rules: ScoringRules, uniform: float
) -> Iterator[tuple[str, float]]:
    """Yield the kinds of faults with the logarithm of how much likelier each makes the token.

    ``uniform`` is a random number that spreads the token's share of the distribution.
    """
    best = spread.logprobs[0]
    for kind, power in TEMPERED.items():
        yield kind, spread.temper(power) - spread.choice
    is_tempered = abs(rules.temperature - 1) > 0.05
    power = rules.temperature if is_tempered else 1.0
    yield "temperature ignored", spread.temper(power) - spread.choice if is_tempered else 0.0
    ties = sum(value == best for value in spread.logprobs)
    is_best = spread.is_listed and spread.choice == best
    for share in BEST_SHARES:
        gain = math.exp(-best) / ties if is_best else 0.0
        yield f"first choice {share:g}", math.log(1 - share + share * gain)
    for share in ANY_SHARES:
        gain = math.exp(min(700.0, -spread.choice)) / spread.size
        yield f"any token {share:g}", math.log(1 - share + share * gain)
    quantile = min(1 - 1e-7, max(1e-9, _find_quantile(spread, uniform)))
    yield "too likely", math.log(SKEW) + (SKEW - 1) * math.log(quantile)
    yield "too unlikely", math.log(SKEW) + (SKEW - 1) * math.log(1 - quantile)


def _find_quantile(spread: Distribution, uniform: float) -> float:
    """Return a number that is uniform from 0 to 1 if the token was drawn as it should be: the
    smaller, the likelier the token."""
    if not spread.is_listed:
        return 1 - spread.tail + uniform * spread.tail
    before = sum(math.exp(value) for value in spread.logprobs if value > spread.choice)
    ties = sum(value == spread.choice for value in spread.logprobs)
    return before + uniform * ties * math.exp(spread.choice)


def score_greedy(places: Sequence[PositionLogprobs]) -> AnswerScores:
    """Score tokens that must be the target's first choice."""
    best = [max((place.chosen, *place.top), key=lambda entry: entry.logprob) for place in places]
    pairs = list(zip(places, best, strict=True))
    return AnswerScores(
        tuple(choice.logprob - place.chosen.logprob for place, choice in pairs),
        tuple(
            place.chosen.token_id if choice.logprob == place.chosen.logprob else choice.token_id
            for place, choice in pairs
        ),
    )


def score_sampled(
    places: Sequence[PositionLogprobs], rules: ScoringRules, vocab_size: int
) -> AnswerScores:
    """Score tokens that were drawn. Their margins are 0, or infinite for excluded tokens."""
    tokens = tuple(place.chosen.token_id for place in places)
    # The numbers depend on the answer itself, so that an audit can be repeated.
    numbers = Random(repr((len(tokens), tokens[:8])))
    # Rounding moves a log probability by s, and the mean of a ratio by at most exp(s**2).
    error = (rules.tie / 2 / rules.temperature) ** 2
    sums: dict[str, float] = {}
    margins, judged = [], 0
    for place in places:
        uniform = numbers.random()
        try:
            spread = find_distribution(place, rules, vocab_size)
        except ValueError:
            margins.append(math.inf)
            continue
        margins.append(0.0)
        if spread is not None:
            judged += 1
            for kind, ratio in weigh_faults(spread, rules, uniform):
                sums[kind] = sums.get(kind, 0.0) + max(IMPOSSIBLE, ratio) - error - spread.doubt
    return AnswerScores(tuple(margins), (), sums or None, judged)
