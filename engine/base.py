"""The engine interface, and the capabilities that an engine may have.

A *capability* is a protocol with further methods. Whoever needs them asks the engine for the object
that offers them (``Engine.capability``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from eaglegate.engine.totals import Totals
from eaglegate.engine.types import EngineInfo, EngineRequest, Health, PostMortem, Step, StepSink
from eaglegate.text.media.image import Image

T = TypeVar("T")
Kind: TypeAlias = Callable[..., T]
"""The class of a capability. It is not ``type[T]``, because mypy accepts no protocol for that: the
callee could try to create an instance."""


class Engine(Protocol):
    """A source of steps. It is cheap to create, is started once and closed once, and may run many
    ``generate`` calls at a time."""

    async def start(self) -> EngineInfo:
        """Load the model and warm up. If cancelled, leave nothing running.

        Raises EngineStartError.
        """
        ...

    async def generate(self, request: EngineRequest, sink: StepSink) -> None:
        """Push steps into ``sink``, and return after the step that carries ``finish``.

        Cancelling the call aborts the request in the engine. An exception of the sink does the same
        and is raised. Raises RequestRejected before the first step, else EngineError subclasses.
        ``engine/steps.py`` has adapters for engines that yield and for readers that iterate.
        """
        ...

    async def health(self) -> Health:
        """Ask the engine itself. If it hangs, this may never return."""
        ...

    async def aclose(self) -> None:
        """Stop the engine and everything it started. In-flight requests end with EngineDead."""
        ...

    def capability(self, kind: Kind[T]) -> T | None:
        """Return the object that offers the methods of ``kind``, or None.

        An engine has the capabilities among its base classes. A wrapper passes the question on to
        the engine that it wraps, unless it has the capability itself.
        """
        return cast("T", self) if kind in type(self).__mro__ else None


class SupportsDepth(Protocol):
    """An engine whose speculation depth can be bounded while it runs."""

    async def set_depth(self, depth: int) -> int:
        """Bound every request's depth from the next step on, and return the bound in force."""
        ...


class SupportsPlanning(Protocol):
    """An engine that can choose the speculation depth of every step."""

    async def describe_planning(self, recent: int = 0) -> Mapping[str, Any]:
        """Describe the planner's estimates and decisions, and the newest steps; empty without a
        planner.
        """
        ...

    async def freeze_planning(self, depth: int | None) -> bool:
        """Hold the planner at ``depth``, or let it choose again if None. Return False without a
        planner."""
        ...

    async def describe_slices(self) -> Sequence[Mapping[str, Any]]:
        """Describe what the planner knows of each tenant's traffic; empty without a planner."""
        ...

    async def forget_tenants(self, tenants: Sequence[str]) -> None:
        """Forget what the traffic of these tenants has taught, in the planner and in lookups."""
        ...


class CountsImages(Protocol):
    """An engine whose model reads images."""

    async def count_image(self, image: Image) -> int:
        """Return the number of tokens by which the engine replaces an image's placeholder.

        Raises RequestRejected if the model cannot take the image, and EngineError.
        """
        ...


class SupportsKilled(Protocol):
    """An engine that runs in a process of its own."""

    @property
    def killed(self) -> bool:
        """True if a signal from outside ended or stopped its process."""
        ...


class SupportsPostMortem(Protocol):
    """An engine that can report how it ended."""

    async def post_mortem(self) -> PostMortem:
        """Describe how the engine ended. Call it after ``aclose``."""
        ...


class SupportsCounters(Protocol):
    """An engine that other clients use as well, and that counts the work for all of them."""

    async def read_counters(self) -> Totals | None:
        """Read the worker's speculation counters since its start; None if it has none.

        Raises EngineError.
        """
        ...


class SupportsInspection(Protocol):
    """An engine that reports how it serves other clients, for the start-up probe to compare."""

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[int] | None:
        """Render a conversation in the worker's own chat template; None if it renders none.

        Raises EngineError.
        """
        ...

    async def has_cache_hits(self) -> bool:
        """Return True if a prompt was ever found in the worker's prefix cache. Raises
        EngineError."""
        ...


class ReadsPrompts(Protocol):
    """An engine that tells the target's log probabilities of a prompt's tokens."""

    async def read_prompt(self, request: EngineRequest, first: int = 0) -> Step:
        """Return the answer to a request with ``prompt_logprobs`` as one step, with those of the
        prompt's tokens from the place ``first`` on.

        Raises EngineError.
        """
        ...


class SupportsUnclaimed(Protocol):
    """An engine that counts steps whose tokens no request received."""

    @property
    def unclaimed(self) -> Totals: ...


class DropsBlocks(Protocol):
    """An engine whose cached blocks can be dropped."""

    async def drop_blocks(self) -> int:
        """Drop all cached blocks and return their number. Running requests keep theirs.

        Raises EngineError.
        """
        ...


class SupportsKill(Protocol):
    """An engine that can be ended from outside."""

    def kill(self) -> int:
        """End the engine's processes as a crash would, and return how many were running."""
        ...
