"""Settings of lookups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from eaglegate.server.errors import ConfigError
from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting

MAX_WIDTH = 32


@dataclass(frozen=True, slots=True)
class LookupSettings(FeatureSettings):
    """Settings of lookups, which are off with 0 tokens."""

    NAME: ClassVar = "lookups"
    FEATURE: ClassVar = "eaglegate.features.lookups.feature:LookupFeature"
    SPECULATION: ClassVar = Heading("Speculation")
    lookup: int = setting(
        0,
        "longest lookup, in tokens: copies of the request's own text, verified where they bring "
        "more than the draft. 0 for none. vLLM's first model runner needs synchronous scheduling",
        metavar="N",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.lookup <= MAX_WIDTH:
            raise ConfigError(
                f"--lookup must be from 1 to {MAX_WIDTH}, or 0 for none; given {self.lookup}"
            )

    @property
    def is_on(self) -> bool:
        return bool(self.lookup)

    def configure_engine(self, choices: dict[str, Any]) -> dict[str, Any]:
        from eaglegate.features.lookups.engine.arguments import add_lookups

        return add_lookups(choices, self.lookup)
