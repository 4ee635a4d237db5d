"""/admin/speculation: the policy's rules as JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from engine.speculation.policy import FlagMode, SpeculationFlag, SpeculationRules
from server.apis.shared.models import RequestModel

Depth = Annotated[int, Field(ge=0)]


class AdminModel(RequestModel):
    """An operator's slip of the pen must not pass for a default."""

    model_config = ConfigDict(extra="forbid")


class FlagModel(AdminModel):
    """Who speculates; ``share``, ``sticky`` and ``salt`` matter in mode share alone."""

    mode: Literal["on", "off", "share"] = "on"
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    sticky: Literal["key", "request"] = "key"
    salt: Annotated[str, Field(max_length=64)] = ""

    def flag(self) -> SpeculationFlag:
        return SpeculationFlag(FlagMode(self.mode), self.share, self.sticky, self.salt)


class SpeculationModel(AdminModel):
    """All rules at once: what is left out goes back to its default."""

    flag: FlagModel = FlagModel()
    workload_flags: dict[str, FlagModel] = Field(default_factory=dict)
    depth: Depth | None = None
    workload_depths: dict[str, Depth] = Field(default_factory=dict)
    key_depths: dict[str, Depth] = Field(default_factory=dict)
    bound: Depth | None = None
    """The deepest any request may draft, running ones too; null leaves it as it is."""

    def rules(self) -> SpeculationRules:
        return SpeculationRules(
            flag=self.flag.flag(),
            workload_flags={name: flag.flag() for name, flag in self.workload_flags.items()},
            depth=self.depth,
            workload_depths=self.workload_depths,
            key_depths=self.key_depths,
        )
