"""Exchange of the draft in a running engine, rollback, and memory of the promoted draft.

``DraftManager`` inspects a candidate, copies it, makes the engine load it between two steps and
keeps the previously promoted draft for a rollback. A *trial* serves without being promoted: an
engine that restarts meanwhile starts with the promoted draft.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from eaglegate.engine.base import DropsBlocks, Engine
from eaglegate.engine.errors import DraftRefused, DraftSwapBusy, EngineError
from eaglegate.engine.speculation.drafts.files import (
    DraftPlan,
    DraftStore,
    check_apart,
    is_whole,
    make_version,
)
from eaglegate.engine.speculation.drafts.versions import (
    DraftListener,
    DraftSwap,
    DraftVersion,
    SwapsDrafts,
)

log = logging.getLogger(__name__)

MOST_SWAPS = 50
"""Number of latest swaps kept for operators."""


class DraftManager:
    """The serving draft, the promoted one, and the one promoted before. Used in one event loop."""

    def __init__(self, plan: DraftPlan, store: DraftStore) -> None:
        self._plan = plan
        self._store = store
        self._running: asyncio.Future[DraftSwap] | None = None
        self._engine: SwapsDrafts | None = None
        self._cache: DropsBlocks | None = None
        self._listeners: list[DraftListener] = []
        self._configured: DraftVersion | None = None
        self.promoted: DraftVersion | None = None
        self.serving: DraftVersion | None = None
        self.previous: DraftVersion | None = None
        self.swaps: deque[DraftSwap] = deque(maxlen=MOST_SWAPS)

    def open(self) -> None:
        """Find the configured draft and the one promoted in its place. This hashes files."""
        try:
            self._configured = self._plan.read_version(self._plan.draft)
        except (DraftRefused, OSError) as error:
            log.info("the draft has no fingerprint: %s", error)
            return
        self.promoted = self._store.recall(self._configured.fingerprint) or self._configured
        self.serving = self.promoted

    def attach(self, engine: Engine) -> None:
        self._engine = engine.capability(SwapsDrafts)
        self._cache = engine.capability(DropsBlocks)

    def watch(self, listener: DraftListener) -> None:
        """Call ``listener`` after every change of the serving draft."""
        self._listeners.append(listener)

    def follow(self, listener: Callable[[DraftVersion, DraftSwap | None], None]) -> None:
        """Call ``listener`` now with the serving draft, if there is one, and after every change."""
        if self.serving is not None:
            listener(self.serving, None)
        self.watch(listener)

    @property
    def in_trial(self) -> bool:
        """True if the serving draft is not promoted."""
        serving_version, promoted_version = self.serving, self.promoted
        return bool(
            serving_version
            and promoted_version
            and serving_version.fingerprint != promoted_version.fingerprint
        )

    def choose_path(self) -> str:
        """Return the draft for a new engine: the promoted one, or the configured one if that is
        damaged."""
        if self._configured is None or self.promoted is None:
            return self._plan.draft
        if self.promoted is not self._configured and not is_whole(self.promoted):
            log.error("the promoted draft %s is damaged; serving the configured one", self.promoted)
            self.promoted = self._configured
        previous_version, self.serving = self.serving, self.promoted
        if (
            previous_version is not None
            and previous_version.fingerprint != self.promoted.fingerprint
        ):
            self._record("restart", previous_version, self.promoted)
        if self.promoted.fingerprint == self._configured.fingerprint:
            return self._plan.draft
        return self.promoted.path

    async def swap(self, source: str, *, trial: bool = False) -> DraftSwap:
        """Serve the draft in ``source`` from the next step on.

        Raises DraftRefused, DraftSwapBusy and EngineError. The running draft then continues to
        serve.
        """
        return await self._exclusively(lambda: self._swap_to(source, trial))

    async def try_again(self, version: DraftVersion) -> DraftSwap:
        """Serve a draft on trial that has been served before. Raises the errors of ``swap``."""
        return await self._exclusively(lambda: self._try(version, time.perf_counter()))

    async def promote(self, version: DraftVersion) -> DraftSwap:
        """Serve and promote a draft that was on trial. Raises the errors of ``swap``."""
        return await self._exclusively(lambda: self._load(version, "swap", time.perf_counter()))

    async def rollback(self) -> DraftSwap:
        """End a trial, or return to the draft promoted before. Raises the errors of ``swap``."""
        return await self._exclusively(self._roll_back)

    async def _exclusively(self, action: Callable[[], Awaitable[DraftSwap]]) -> DraftSwap:
        """Run a swap alone. It continues if the client leaves."""
        if self._running is not None and not self._running.done():
            raise DraftSwapBusy("Another draft swap is running; try again when it has ended.")
        self._running = asyncio.ensure_future(action())
        return await asyncio.shield(self._running)

    async def wait_idle(self) -> None:
        """Wait until no swap is running."""
        if self._running is not None:
            await asyncio.wait({self._running})

    async def _swap_to(self, source: str, trial: bool) -> DraftSwap:
        start_s = time.perf_counter()
        serving_version = self._require_serving()
        candidate = await asyncio.to_thread(self._admit, source, serving_version)
        if trial:
            swap = await self._try(candidate, start_s)
        else:
            swap = await self._load(candidate, "swap", start_s)
        self._prune(candidate)
        return swap

    async def _try(self, version: DraftVersion, start_s: float) -> DraftSwap:
        """Serve a draft on trial. A canary does so in every slot, so the log says it at INFO."""
        return await self._load(version, "trial", start_s, logging.INFO)

    async def _roll_back(self) -> DraftSwap:
        self._require_serving()
        promoted_version = self.promoted
        ends_trial = self.in_trial
        goal = promoted_version if ends_trial else self.previous
        if goal is None:
            raise DraftRefused("There is no earlier draft to go back to.")
        if not await asyncio.to_thread(is_whole, goal):
            raise DraftRefused(f"The earlier draft {goal.fingerprint} is damaged in {goal.path}.")
        level = logging.INFO if ends_trial else logging.WARNING
        return await self._load(goal, "rollback", time.perf_counter(), level)

    def _require_serving(self) -> DraftVersion:
        if self.serving is None:
            raise DraftRefused(
                f"The running draft ({self._plan.draft or 'none'}) has no local folder of "
                "safetensors, so nothing can be compared with it."
            )
        return self.serving

    def _admit(self, source: str, serving_version: DraftVersion) -> DraftVersion:
        """Check and copy a candidate, and keep a copy of the configured draft for a rollback."""
        inspection = check_apart(self._plan, source, serving_version.path)
        version = make_version(source, **inspection)
        copy = self._store.add(version)
        check_apart(self._plan, copy.path, serving_version.path)
        self._keep_configured()
        log.info("draft %s inspected: %s", copy.fingerprint, inspection["summary"])
        return copy

    def _keep_configured(self) -> None:
        configured_version = self._configured
        if configured_version is None or configured_version.path != configured_version.source:
            return
        copy = self._store.add(configured_version)
        if copy.fingerprint != configured_version.fingerprint:
            log.warning("the configured draft's files have changed since the engine loaded them")
            return
        self.serving = copy if self.serving is configured_version else self.serving
        self.promoted = copy if self.promoted is configured_version else self.promoted
        self._configured = copy

    async def _load(
        self, version: DraftVersion, kind: str, start_s: float, level: int = logging.WARNING
    ) -> DraftSwap:
        previous_version = self._require_serving()
        engine = self._engine
        if engine is None:
            raise DraftRefused("No engine has started yet.")
        if previous_version.fingerprint == version.fingerprint:
            pause_s = 0.0
        else:
            pause_s = await engine.swap_draft(version.path, previous_version.path)
            self.serving = version
        if kind != "trial" and self._promote(version):
            await self._drop_cached_blocks()
        took_s = time.perf_counter() - start_s
        return self._record(kind, previous_version, version, pause_s, took_s, level)

    async def _drop_cached_blocks(self) -> None:
        """Drop the prefix cache, which holds the keys and values of the draft before.

        Trials do not drop it, because a canary exchanges drafts in every slot.
        """
        if self._cache is None:
            return
        try:
            await self._cache.drop_blocks()
        except EngineError as error:
            log.warning("blocks of the earlier draft stay in the prefix cache: %s", error)

    def _promote(self, version: DraftVersion) -> bool:
        """Promote ``version``. Return True if another draft was promoted before."""
        assert self._configured is not None
        if self.promoted is not None and self.promoted.fingerprint == version.fingerprint:
            return False  # end of a trial, whose draft may be tried again
        self.previous = self.promoted
        self.promoted = version
        try:
            self._store.remember(self._configured.fingerprint, version)
        except OSError as error:
            log.error("the promoted draft cannot be remembered: %s", error)
        return True

    def _prune(self, candidate: DraftVersion) -> None:
        """Delete copies that no rollback can need."""
        versions = (self._configured, self.promoted, self.previous, candidate)
        try:
            self._store.prune({version.fingerprint for version in versions if version is not None})
        except OSError as error:
            log.error("copies of earlier drafts cannot be deleted: %s", error)

    def _record(
        self,
        kind: str,
        previous_version: DraftVersion,
        version: DraftVersion,
        pause_s: float = 0.0,
        took_s: float = 0.0,
        level: int = logging.WARNING,
    ) -> DraftSwap:
        swap = DraftSwap(
            time.time(), kind, previous_version.fingerprint, version.fingerprint, pause_s, took_s
        )
        self.swaps.append(swap)
        log.log(
            level,
            "draft %s: %s -> %s (%s), pause %.0f ms",
            kind, previous_version.fingerprint, version.fingerprint, version.source, 1000 * pause_s,
        )  # fmt: skip
        for listener in self._listeners:
            listener(version, swap)
        return swap

    def describe(self) -> dict[str, Any]:
        """Describe the drafts for operators."""
        versions = {
            "serving": self.serving,
            "promoted": self.promoted,
            "previous": self.previous,
            "configured": self._configured,
        }
        return {
            **{name: version and asdict(version) for name, version in versions.items()},
            "trial": self.in_trial,
            "swaps": [asdict(swap) for swap in self.swaps],
        }
