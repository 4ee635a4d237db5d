"""Application of cures, the smallest first, and measurement of their effects."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from eaglegate.engine.base import Remedies
from eaglegate.engine.errors import DraftRefused, DraftSwapBusy, EngineError
from eaglegate.engine.types import EngineRequest
from eaglegate.features.doctor.diagnosis import Cure, Treatment
from eaglegate.features.doctor.trials import PairedTrial, is_cured, measure_fall

log = logging.getLogger(__name__)

MOST_CURES = 6
"""Most cures in ``CURES_S`` seconds. Further ones are left to an operator."""
CURES_S = 3600.0
FEW_FAULTS = 3
"""Faults of cached blocks in ``CURES_S`` seconds that are cured one prefix at a time. More faults
suggest that the whole cache is at fault, and would use up the cures before the last prefix is
cured.
"""


Reload = Callable[[], Awaitable[object]]
Measure = Callable[[], Awaitable[Sequence[PairedTrial]]]


class Cures:
    """Cures of one engine and its draft."""

    def __init__(
        self, reload: Reload | None, on_cure: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        """Set up without an engine. ``on_cure`` is called after each cure, before its effect is
        measured."""
        self._reload, self._applied, self._clock = reload, on_cure, clock
        self._remedies: Remedies | None = None
        self._times: deque[float] = deque(maxlen=MOST_CURES)
        self._cache_faults: deque[float] = deque(maxlen=FEW_FAULTS)

    @property
    def engine_age_s(self) -> float:
        return 0.0 if self._remedies is None else self._remedies.age_s

    def attach(self, remedies: Remedies) -> None:
        self._remedies = remedies

    async def treat_cache(
        self, requests: Sequence[EngineRequest], trials: Sequence[PairedTrial], measure: Measure
    ) -> tuple[Treatment, ...]:
        """Cure cached blocks. ``requests`` has one request of each prefix at fault."""

        async def drop() -> None:
            assert self._remedies is not None
            for request in requests:
                await self._remedies.drop_prefix(request)

        cures = [(Cure.DROP_CACHE, self._drop_all)]
        if self._has_place(self._cache_faults):
            cures = [(Cure.DROP_PREFIX, drop), *cures]
        self._cache_faults.append(self._clock())
        return await self._treat(cures, trials, measure)

    async def treat_weights(
        self, trials: Sequence[PairedTrial], measure: Measure
    ) -> tuple[Treatment, ...]:
        async def reload() -> None:
            assert self._reload is not None
            await self._reload()
            await self._drop_all()

        cures = [(Cure.RELOAD, reload)] if self._reload is not None else []
        return await self._treat(cures, trials, measure)

    async def _drop_all(self) -> None:
        assert self._remedies is not None
        await self._remedies.drop_prefix(None)

    async def _restart(self) -> None:
        assert self._remedies is not None
        await self._remedies.restart("doctor: acceptance stays low")

    async def _treat(
        self,
        cures: Sequence[tuple[Cure, Callable[[], Awaitable[None]]]],
        trials: Sequence[PairedTrial],
        measure: Measure,
    ) -> tuple[Treatment, ...]:
        """Apply the cures, and finally a restart, until one works."""
        fall, treatments = measure_fall(trials), list[Treatment]()
        for cure, apply in (*cures, (Cure.RESTART, self._restart)):
            if not self._has_place(self._times):
                break
            start, previous_fall, has_worked = self._clock(), fall, False
            self._times.append(start)
            try:
                await apply()
                self._applied()
                new_trials = await measure()
                fall, has_worked = measure_fall(new_trials), is_cured(new_trials)
            except (EngineError, DraftRefused, DraftSwapBusy) as error:
                log.warning("doctor: cure '%s' failed: %s", cure, error)
            treatments.append(
                Treatment(cure, previous_fall, fall, self._clock() - start, has_worked)
            )
            if has_worked:
                break
        return tuple(treatments)

    def _has_place(self, times: deque[float]) -> bool:
        """Return True if ``times`` may take another entry, because it is not full or its oldest is
        older than ``CURES_S``."""
        return len(times) < (times.maxlen or 0) or self._clock() - times[0] > CURES_S
