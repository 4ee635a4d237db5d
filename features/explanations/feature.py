"""Explanations of a gateway's requests, kept in a ring."""

from __future__ import annotations

from eaglegate.features.explanations.ring import ExplanationRing
from eaglegate.features.explanations.settings import ExplanationSettings
from eaglegate.observability.facts import AnswerAudited, ExchangeEnded, FactBus, RequestEnded
from eaglegate.server.cli.feature import ActiveFeature, Core


class ExplanationFeature(ActiveFeature):
    """Keeps the newest, slowest, worst accepted and failed requests."""

    def __init__(self, core: Core, _: ExplanationSettings) -> None:
        self.telemetry = core.telemetry
        self.ring = ExplanationRing()
        follow(self.ring, core.telemetry.facts)


def follow(ring: ExplanationRing, facts: FactBus) -> None:
    """Fill ``ring`` from the facts."""
    facts.subscribe(RequestEnded, lambda fact: ring.add(fact.observation, fact.record))
    facts.subscribe(ExchangeEnded, lambda fact: ring.complete(fact.exchange))
    facts.subscribe(AnswerAudited, ring.add_audit)
