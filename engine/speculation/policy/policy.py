"""Choice of the requests that speculate, and of their depth.

A request is in one of two *lanes*: ``speculative`` or ``plain`` (depth 0). A flag per workload
decides the lane, with sticky shares. In the speculative lane, the depth is the first of: the
request's own, its key's default, its workload's default, the general default, the engine's K. The
plain lane overrides them all, so that an operator can rely on ``off``. Lookups beside a draft have
one bound for all requests. A workload that an audit
holds for the request's key is in the plain lane, and in no arm of a canary.

Rules are immutable and replaced as a whole (``SpeculationPolicy.rules = ...``), so a request sees
one consistent set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from eaglegate.engine.types import Arm

SPECULATIVE = "speculative"
PLAIN = "plain"


class FlagMode(StrEnum):
    """Mode of a flag."""

    ON = "on"
    OFF = "off"
    SHARE = "share"
    """A share of the requests speculates; the others show the cost without speculation."""


class DepthSource(StrEnum):
    """Source that decided a request's depth."""

    AUDIT = "audit"
    FLAG = "flag"
    REQUEST = "request"
    KEY = "key"
    WORKLOAD = "workload"
    DEFAULT = "default"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class SpeculationFlag:
    """Switch of one workload. ``share`` (0..1) and the fields after it apply only in mode
    ``share``."""

    mode: FlagMode = FlagMode.ON
    share: float = 1.0
    sticky: Literal["key", "request"] = "key"
    """Unit that stays in its lane: all requests of an API key, or one request and its retries.
    """
    salt: str = ""
    """Another salt draws another share. A larger ``share`` keeps all units already in it."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be between 0 and 1, got {self.share}")


@dataclass(frozen=True, slots=True)
class SpeculationRules:
    """Rules that can be set at run time. Depths above the engine's K are served at K."""

    flag: SpeculationFlag = SpeculationFlag()
    """Flag of workloads without their own."""
    workload_flags: Mapping[str, SpeculationFlag] = field(default_factory=dict)
    depth: int | None = None
    """General default; None means the engine's K."""
    workload_depths: Mapping[str, int] = field(default_factory=dict)
    key_depths: Mapping[str, int] = field(default_factory=dict)
    """Depths by the key's public name, never by the key itself."""
    lookup: int | None = None
    """Longest lookup of every request; None means the engine's N, 0 means no lookups."""

    def __post_init__(self) -> None:
        depths = {"depth": self.depth}
        depths |= {
            f"workload_depths[{name!r}]": bound for name, bound in self.workload_depths.items()
        }
        depths |= {f"key_depths[{name!r}]": bound for name, bound in self.key_depths.items()}
        for name, depth in depths.items():
            if depth is not None and depth < 0:
                raise ValueError(f"{name} must be 0 (no speculation) or more, got {depth}")
        if self.lookup is not None and self.lookup < 0:
            raise ValueError(f"lookup must be 0 (no lookups) or more, got {self.lookup}")

    def flag_of(self, workload: str) -> SpeculationFlag:
        return self.workload_flags.get(workload, self.flag)


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """Part of a canary in the policy: it draws each request's arm, and applies the candidate's
    rules.

    A request with its own depth is in no arm of a trial of rules. The rules in force apply to it.
    """

    draw: Callable[[str], Arm]
    """Returns the arm of a session, or of a request without a session."""
    rules: SpeculationRules | None = None
    """Rules of the candidate; None if the trial does not change rules."""

    def find_arm(self, unit: str, depth: int | None) -> Arm | None:
        return None if self.rules is not None and depth is not None else self.draw(unit)


@dataclass(frozen=True, slots=True)
class SpeculationDecision:
    """Decision on one ``EngineRequest``: its ``depth`` (None means the engine's K), ``lane`` and
    longest ``lookup`` (None means the engine's N)."""

    depth: int | None
    lane: str
    source: DepthSource
    arm: Arm | None = None
    """Arm of a canary; None outside of canaries."""
    lookup: int | None = None


IsHeld = Callable[[str, str], bool]
"""Tells if a workload lost speculation because of audits, for a key."""


class SpeculationPolicy:
    """The rules in force, and their application to requests."""

    def __init__(self, rules: SpeculationRules | None = None, holds: IsHeld | None = None) -> None:
        self.rules = rules or SpeculationRules()
        self.holds = holds
        self.listeners: list[Callable[[], None]] = []
        """Called after an operator has set rules."""
        self.trial: PolicyTrial | None = None
        """Trial of the running canary."""

    def set_rules(self, rules: SpeculationRules) -> None:
        """Set the rules that an operator asked for."""
        self.rules = rules
        for listener in self.listeners:
            listener()

    def decide(
        self,
        request_id: str,
        workload: str,
        key: str | None = None,
        depth: int | None = None,
        session: str | None = None,
    ) -> SpeculationDecision:
        """Decide a request's depth, lane and longest lookup.

        ``key`` is the API key's public name, ``depth`` the request's own.
        """
        if self.holds is not None and self.holds(workload, key or ""):
            return SpeculationDecision(0, PLAIN, DepthSource.AUDIT)
        trial, rules, arm = self.trial, self.rules, None
        if trial is not None:
            arm = trial.find_arm(session or request_id, depth)
            rules = trial.rules or rules if arm is Arm.CANDIDATE else rules
        if not is_speculative(rules.flag_of(workload), request_id, key):
            return SpeculationDecision(0, PLAIN, DepthSource.FLAG, arm)
        choice, source = _choose_first(
            (depth, DepthSource.REQUEST),
            (rules.key_depths.get(key) if key is not None else None, DepthSource.KEY),
            (rules.workload_depths.get(workload), DepthSource.WORKLOAD),
            (rules.depth, DepthSource.DEFAULT),
        )
        lane = PLAIN if choice == 0 else SPECULATIVE
        return SpeculationDecision(choice, lane, source, arm, rules.lookup)


def is_speculative(flag: SpeculationFlag, request_id: str, key: str | None) -> bool:
    """Return True if ``flag`` puts the request in the speculative lane. Requests without a key are
    drawn one by one."""
    if flag.mode is not FlagMode.SHARE:
        return flag.mode is FlagMode.ON
    id_to_draw = key if flag.sticky == "key" and key is not None else request_id
    return draw_position(flag.salt, id_to_draw) < flag.share


def draw_position(salt: str, identifier: str) -> float:
    """Map an id to a position in [0, 1): the same in every process and after every restart."""
    digest = hashlib.blake2b(identifier.encode(), digest_size=8, key=salt.encode()[:64]).digest()
    return int.from_bytes(digest) / 2**64


def _choose_first(*choices: tuple[int | None, DepthSource]) -> tuple[int | None, DepthSource]:
    return next((choice for choice in choices if choice[0] is not None), (None, DepthSource.ENGINE))
