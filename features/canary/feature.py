"""Canaries of a gateway, and the rules that earlier ones promoted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from eaglegate.features.canary.changes import CanaryChanges
from eaglegate.features.canary.metrics import Canaries
from eaglegate.features.canary.promoted import PromotedRules
from eaglegate.features.canary.runner import CanaryRunner
from eaglegate.features.canary.settings import CanarySettings
from eaglegate.server.cli.feature import ActiveFeature, Core


class CanaryFeature(ActiveFeature):
    """Runs canaries, one at a time. Promoted rules replace those of the command line."""

    def __init__(self, core: Core, _: CanarySettings) -> None:
        policy, engine = core.policy, core.engine
        rules = replace(policy.rules, key_depths={})
        promoted_rules = PromotedRules(core.settings.draft_store, rules)
        policy.rules = replace(promoted_rules.choose(), key_depths=policy.rules.key_depths)
        policy.listeners.append(promoted_rules.forget)
        self.runner = CanaryRunner(
            CanaryChanges(
                core.telemetry,
                policy,
                promoted_rules,
                lambda: engine.losses,
                core.backend.drafts,
                core.backend.fleet,
            )
        )
        core.telemetry.add_group(
            lambda scope: Canaries(scope, self.runner.describe, lambda: self.runner.verdicts)
        )

    def describe(self) -> Mapping[str, object]:
        return {"canary": self.runner.describe()}

    def list_headlines(self) -> Iterable[str]:
        return self.runner.list_headlines()
