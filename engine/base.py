"""The interface every engine has: one method streams, one tells health, one closes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine.speculation.accounting import Totals
from engine.supervision.losses import EngineLoss, PostMortem
from engine.types import EngineInfo, EngineRequest, Health, Step


class Engine(Protocol):
    """Made cheaply, started once, closed once. Any number of ``generate`` calls run at a time."""

    async def start(self) -> EngineInfo:
        """Load and warm up. Raises EngineStartError. Cancelled, it leaves nothing behind."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[Step, None]:
        """Yield steps until one carries ``finish``.

        Closing the generator (``aclosing``) or cancelling its consumer aborts the request in the
        engine. Raises RequestRejected before the first step, else EngineError subclasses.
        """
        ...

    async def health(self) -> Health:
        """Ask the engine itself; an engine that hangs may leave this unanswered."""
        ...

    async def aclose(self) -> None:
        """Stop the engine and everything it started. Running requests end with EngineDead."""
        ...


@runtime_checkable
class SupportsDepth(Protocol):
    """An engine whose speculation depth can be bounded while it runs."""

    async def set_depth(self, depth: int) -> int:
        """Bound every request's depth from the next step on; returns the bound in force."""
        ...


class ResilientEngine(Engine, Protocol):
    """An engine that outlives the engines it is made of, and its requests their deaths."""

    async def set_depth(self, depth: int) -> AppliedDepth:
        """Bound every request's depth. Answers at once, the engine away or not.

        Raises ValueError where there is no depth to set.
        """
        ...

    async def wait_failed(self) -> str:
        """Return, with the reason, when there will be no engine any more."""
        ...

    @property
    def losses(self) -> Iterable[EngineLoss]:
        """How the last engines were lost, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class AppliedDepth:
    """``pending``: no engine has confirmed it yet; it holds from the next one on at the latest."""

    bound: int
    pending: bool = False


@runtime_checkable
class SupportsKilled(Protocol):
    """An engine in a process of its own."""

    @property
    def killed(self) -> bool:
        """Its process was ended or stopped by a signal from outside, not by what it did."""
        ...


@runtime_checkable
class SupportsPostMortem(Protocol):
    """An engine that knows how it ended."""

    async def post_mortem(self) -> PostMortem:
        """After ``aclose``."""
        ...


@runtime_checkable
class SupportsCounters(Protocol):
    """An engine that others use, too, and that counts what it does for all of them."""

    async def counted(self) -> Totals | None:
        """Its speculation since it began; None where it tells nothing. Raises EngineError."""
        ...


@runtime_checkable
class SupportsUnclaimed(Protocol):
    """An engine that counts the steps it made for nobody."""

    @property
    def unclaimed(self) -> Totals: ...
