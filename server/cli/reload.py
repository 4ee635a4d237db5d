"""Reload of keys and limits in a running gateway: all of them take effect, or none."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace
from typing import Any

from eaglegate.engine.speculation.policy.policy import SpeculationPolicy, SpeculationRules
from eaglegate.server.access.admission import Admission, AdmissionLimits
from eaglegate.server.access.key_classes import assign_classes
from eaglegate.server.access.keys import KeyRing, load_keys
from eaglegate.server.apis.shared.encryption import ReasoningCipher, read_configured_keys
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.cli.command_line import read_again
from eaglegate.server.flags import make_part
from eaglegate.server.generation.served_model import ServedModel
from eaglegate.server.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReloadedSettings:
    """Settings that a reload may change. Everything that can fail has succeeded once it exists."""

    keys: KeyRing
    bounds: AdmissionLimits
    request_timeout_s: float
    body_timeout_s: float
    cipher: ReasoningCipher | None
    """The new cipher; None keeps the current one if no encryption keys are configured."""

    def apply(
        self, gateway: Gateway, admission: Admission, policy: SpeculationPolicy
    ) -> dict[str, Any]:
        """Replace all settings at once, and return the values in force."""
        keys = self.keys.succeed(gateway.keys)
        rules = replace(policy.rules, key_depths=keys.depths)
        settings = replace(
            gateway.settings,
            request_timeout_s=self.request_timeout_s,
            body_timeout_s=self.body_timeout_s,
        )
        gateway.keys, gateway.settings, policy.rules = keys, settings, rules
        gateway.cipher = self.cipher or gateway.cipher
        admission.bounds, admission.classes = self.bounds, keys.classes
        if gateway.pipeline is not None:
            warn_ignored_depths(rules, gateway.pipeline.served_model)
        if warning := keys.describe_lockout():
            log.warning("%s", warning)
        return {"keys": len(keys.keys), "bounds": asdict(self.bounds)}


def warn_ignored_depths(rules: SpeculationRules, served_model: ServedModel) -> None:
    """Log a warning about depths that workers without our scheduler do not honour."""
    depths = {"--depth": rules.depth}
    depths |= {
        f"the depth of the API key {name}": limit for name, limit in rules.key_depths.items()
    }
    names = [name for name, depth in depths.items() if depth not in (None, served_model.depth)]
    if names and not served_model.depth_per_request:
        log.warning(
            "without effect: %s. The workers draft %d tokens for every request; start them with "
            "--scheduler-cls eaglegate.engine.Scheduler",
            ", ".join(names),
            served_model.depth,
        )


def read_reloaded(argv: list[str]) -> ReloadedSettings:
    """Read the command line, the environment and all files again. Raises ConfigError."""
    settings = read_again(argv).settings
    encryption = load_encryption_keys(settings)
    return ReloadedSettings(
        load_key_ring(settings),
        make_part(AdmissionLimits, settings),
        settings.request_timeout_s,
        settings.body_timeout_s,
        ReasoningCipher(encryption) if encryption else None,
    )


def load_key_ring(settings: Settings) -> KeyRing:
    """Load the API keys. Raises ConfigError."""
    ring = load_keys(settings.api_key_file, settings.api_key, settings.admin_api_key)
    return assign_classes(ring, settings.key_class)


def load_encryption_keys(settings: Settings) -> list[str]:
    """Load the encryption keys. Raises ConfigError."""
    return read_configured_keys(settings.encryption_key, settings.encryption_key_file)
