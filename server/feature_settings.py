"""Settings of a feature, which the command line reads and a backend may look at."""

from __future__ import annotations

from typing import Any, ClassVar


class FeatureSettings:
    """Base of the settings of a feature, a dataclass. Its flags, variables and help follow."""

    NAME: ClassVar[str]
    """Name of the folder. The feature that is on is ``Gateway.features[NAME]``."""
    FEATURE: ClassVar[str]
    """Module and class of the feature (``eaglegate.server.cli.feature.ActiveFeature``), imported
    where it is on."""

    @property
    def is_on(self) -> bool:
        """True if a gateway with these settings has the feature."""
        return True

    def configure_engine(self, choices: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of an engine in this process (fields of vLLM's AsyncEngineArgs) with
        those of the feature's part in the engine. Raises ValueError."""
        return choices
