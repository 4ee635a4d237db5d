"""Options of ``eaglegate prove`` in addition to those of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eaglegate.server.flags import Heading, setting


@dataclass(frozen=True, slots=True)
class ProveSettings:
    """Options of ``prove`` in addition to those of ``serve``."""

    PROVE: ClassVar = Heading("Proof")
    out: str = setting("eaglegate-prove", "folder for prove.html and prove.json", metavar="FOLDER")
    quick: bool = setting(
        False, "fewer prompts and no speeds, for machines on which an engine is slow"
    )
    time_limit: float = setting(
        0.0,
        "seconds that engines and checks may take; the report says what was not done; 0 for no "
        "limit",
        metavar="SECONDS",
    )
