"""The interface of an engine that survives the loss of its backends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from eaglegate.engine.base import Engine
from eaglegate.engine.supervision.draft_blame import DraftHold
from eaglegate.engine.supervision.policy import EngineLoss


@dataclass(frozen=True, slots=True)
class AppliedDepth:
    """A depth bound that was set.

    If ``pending``, no engine has confirmed it; it applies from the next engine on at the latest.
    """

    bound: int
    pending: bool = False


class ResilientEngine(Engine, Protocol):
    """An engine that survives backend restarts, in-flight requests included."""

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound every request's depth. Returns at once, even while the backend restarts.

        Raises ValueError if the engine has no depth to bound.
        """
        ...

    @property
    def step_tokens(self) -> int:
        """Maximum number of tokens that the running backends compute in a step, together."""
        ...

    @property
    def draft_holds(self) -> tuple[DraftHold, ...]:
        """Depths that are not used because they killed engines."""
        ...

    def release_drafts(self) -> tuple[DraftHold, ...]:
        """Use the held depths again, and return them."""
        ...

    @property
    def is_live(self) -> bool:
        """Return True while a backend runs, False while it restarts."""
        ...

    async def wait_failed(self) -> str:
        """Wait until no engine will become available any more, and return the reason."""
        ...

    @property
    def losses(self) -> Iterable[EngineLoss]:
        """The last engine losses, oldest first."""
        ...
