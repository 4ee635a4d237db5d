"""One response on its way into the store and into its conversation."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import replace

from engine.observer import Observer
from server.apis.responses.background import HOLD_S
from server.apis.responses.conversations import (
    ItemList,
)
from server.apis.responses.response import ResponseBuilder
from server.apis.responses.response_items import ReasoningStyle
from server.errors import InvalidRequest, ReaderTooSlow, StoreFailed
from server.generation.job import Job
from server.http.response import (
    Batches,
    tell_source,
)
from server.store.base import ConversationStore, ResponseStore, Stored


class ResponseRecord:
    """One response on its way into the store, if it is to be kept."""

    def __init__(
        self,
        job: Job,
        owner: str,
        given: ItemList,
        store: ResponseStore | None,
        observer: Observer,
    ) -> None:
        self.job = job
        self.owner = owner
        self._given = given
        self._store = store
        self._observer = observer
        self.thinking = ReasoningStyle()
        self.conversations: tuple[str, ConversationStore] | None = None
        """Which conversation it belongs to, and where that is kept."""

    async def kept(self, source: Batches, building: ResponseBuilder) -> Batches:
        """The batches; after the last, the response is stored before the client hears of it."""
        building.kept = self._store is not None
        async with aclosing(source) as batches:
            async for batch in batches:
                try:
                    yield batch
                except ReaderTooSlow as error:
                    await tell_source(batches, error)
                    raise
        await self.keep_if_possible(building)

    async def keep_if_possible(self, building: ResponseBuilder) -> None:
        """The answer is worth more than its copy: without one it is delivered and says so."""
        try:
            if self._store is not None:
                await self._store.put(self._stored(building))
            await self._add(building)
        except (StoreFailed, InvalidRequest):
            building.kept = False
            self._observer.record_storage_failure()

    async def begin(self, building: ResponseBuilder) -> None:
        """A background response is there from its beginning. Raises StoreFailed."""
        assert self._store is not None
        until = time.time() + HOLD_S
        await self._store.put(replace(self._stored(building), held_until=until))

    async def settle(self, building: ResponseBuilder) -> None:
        """The end of a background response, unless another gateway cancelled or deleted it."""
        assert self._store is not None
        try:
            if await self._store.settle(self._stored(building)):
                await self._add(building)
        except (StoreFailed, InvalidRequest):
            building.kept = False
            self._observer.record_storage_failure()

    async def _add(self, building: ResponseBuilder) -> None:
        """What was said becomes part of the conversation.

        Raises StoreFailed, and InvalidRequest where others have filled it meanwhile.
        """
        if self.conversations is None or building.status not in ("completed", "incomplete"):
            return
        id, store = self.conversations
        await store.append_answer(id, [*self._given, *building.response()["output"]])

    def _stored(self, building: ResponseBuilder) -> Stored:
        job = self.job
        previous = job.repeated["previous_response_id"]
        return Stored(job.id, self.owner, job.created, building.response(), self._given, previous)
