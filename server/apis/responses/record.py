"""Stores one response and adds it to its conversation."""

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
    end_source,
)
from server.store.base import ConversationStore, ResponseStore, StoredResponse


class ResponseRecord:
    """Stores one response, unless ``store`` is None."""

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
        """Its conversation, and the store of conversations."""

    async def store_after(self, source: Batches, builder: ResponseBuilder) -> Batches:
        """The batches; the response is stored before the client receives the end."""
        builder.stored = self._store is not None
        async with aclosing(source) as batches:
            async for batch in batches:
                try:
                    yield batch
                except ReaderTooSlow as error:
                    await end_source(batches, error)
                    raise
        await self.store_if_possible(builder)

    async def store_if_possible(self, builder: ResponseBuilder) -> None:
        """An answer that cannot be stored is still delivered, with ``store`` false."""
        try:
            if self._store is not None:
                await self._store.put(self._stored(builder))
            await self._add(builder)
        except (StoreFailed, InvalidRequest):
            builder.stored = False
            self._observer.record_storage_failure()

    async def begin(self, builder: ResponseBuilder) -> None:
        """Store a background response before it runs. Raises StoreFailed."""
        assert self._store is not None
        until = time.time() + HOLD_S
        await self._store.put(replace(self._stored(builder), held_until=until))

    async def settle(self, builder: ResponseBuilder) -> None:
        """Store the final state, unless another gateway cancelled or deleted the response."""
        assert self._store is not None
        try:
            if await self._store.settle(self._stored(builder)):
                await self._add(builder)
        except (StoreFailed, InvalidRequest):
            builder.stored = False
            self._observer.record_storage_failure()

    async def _add(self, builder: ResponseBuilder) -> None:
        """Add input and output to the conversation.

        Raises StoreFailed, and InvalidRequest if the conversation is full.
        """
        if self.conversations is None or builder.status not in ("completed", "incomplete"):
            return
        id, store = self.conversations
        await store.append_answer(id, [*self._given, *builder.response()["output"]])

    def _stored(self, builder: ResponseBuilder) -> StoredResponse:
        job = self.job
        previous = job.repeated["previous_response_id"]
        return StoredResponse(
            job.id, self.owner, job.created, builder.response(), self._given, previous
        )
