"""Creation, storage and retrieval of responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from fastapi import Request
from starlette.responses import Response

from eaglegate.engine.events import EventSink, Observer
from eaglegate.server.access.caller import Caller, find_caller
from eaglegate.server.apis.responses.background import (
    HOLD_S,
    AcceptedWork,
    BackgroundRun,
    BackgroundRuns,
    LoggedStream,
)
from eaglegate.server.apis.responses.conversations import (
    ConversationsService,
    ItemList,
    check_history,
    resolve_references,
)
from eaglegate.server.apis.responses.items import ItemDict, read_input
from eaglegate.server.apis.responses.request import ENCRYPTED, ResponsesRequest
from eaglegate.server.apis.responses.response import ResponseBuilder, ResponseFold, ResponseStream
from eaglegate.server.apis.responses.response_items import ReasoningStyle
from eaglegate.server.apis.responses.to_job import check_storage, make_responses_job
from eaglegate.server.apis.shared.gateway import Gateway
from eaglegate.server.apis.shared.request import parse, read_body
from eaglegate.server.apis.shared.route import (
    count_prompt_tokens,
    make_encoding_context,
    render_prompt,
)
from eaglegate.server.apis.shared.template import MediaPolicy
from eaglegate.server.errors import (
    InvalidRequest,
    NotFound,
    StoreFailed,
    openai_body,
)
from eaglegate.server.generation.generate import generate
from eaglegate.server.generation.job import Conversation, Job
from eaglegate.server.generation.pipeline import Pipeline
from eaglegate.server.http.padding import PaddedStream, pad_each
from eaglegate.server.http.response import (
    FoldedResponse,
    ReplayedResponse,
    Run,
    StreamedResponse,
    json_response,
)
from eaglegate.server.store.base import StoredResponse
from eaglegate.server.store.conversations import SqlConversationStore
from eaglegate.server.store.sql import SqlResponseStore

SWEEP_S = 600.0


class ResponseRecord:
    """Stores one response, unless ``store`` is None."""

    def __init__(
        self,
        job: Job,
        items: ItemList,
        store: SqlResponseStore | None,
        observer: Observer,
    ) -> None:
        self.job = job
        self.owner = job.caller.owner
        self._items = items
        self._store = store
        self._observer = observer
        self.thinking = ReasoningStyle()
        self.conversations: tuple[str, SqlConversationStore] | None = None
        """The id of the response's conversation, and the store of conversations."""

    def store_after(self, run: Run, builder: ResponseBuilder) -> Run:
        """Return ``run`` extended by storing the response, before the client receives the end."""
        builder.stored = self._store is not None

        async def run_and_store(sink: EventSink) -> None:
            await run(sink)
            await self.store_if_possible(builder)

        return run_and_store

    async def store_if_possible(self, builder: ResponseBuilder) -> None:
        """Store the response. If that fails, it is still delivered, with ``store`` false."""
        try:
            if self._store is not None:
                await self._store.put(self._make_stored(builder.response()))
            await self._add(builder)
        except (StoreFailed, InvalidRequest):
            builder.stored = False
            self._observer.record_storage_failure()

    async def begin(self, response: dict[str, Any]) -> None:
        """Store a background response that is accepted. Raises StoreFailed."""
        assert self._store is not None
        expiry = time.time() + HOLD_S
        await self._store.put(replace(self._make_stored(response), held_until=expiry))

    async def settle(self, builder: ResponseBuilder) -> None:
        """Store the final state, unless another gateway cancelled or deleted the response."""
        assert self._store is not None
        try:
            if await self._store.settle(self._make_stored(builder.response())):
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
        await store.append_answer(id, [*self._items, *builder.response()["output"]])

    def _make_stored(self, response: dict[str, Any]) -> StoredResponse:
        job = self.job
        previous = job.display.repeated["previous_response_id"]
        return StoredResponse(job.id, self.owner, job.created, response, self._items, previous)


class ResponsesService:
    """Creates responses, and stores them unless the client asks not to."""

    def __init__(self, gateway: Gateway, runs: BackgroundRuns) -> None:
        self._gateway = gateway
        self._runs = runs
        self._conversations = ConversationsService(gateway)

    async def create(self, request: Request, arrival: float) -> Response:
        gateway = self._gateway
        body, items, job, path = await self._read_job(request)
        run = partial(generate, job, path, gateway.observer, arrival)
        store = gateway.store if self._should_store(body) else None
        record = ResponseRecord(job, items, store, gateway.observer)
        record.thinking = self._thinking(body, record.owner)
        if body.conversation_id is not None:
            record.conversations = (body.conversation_id, self._conversations.store)
        if body.background:
            return await self._respond_in_background(record, path, run)
        return self._respond_now(record, path, run)

    async def count_tokens(self, request: Request, arrival: float) -> dict[str, Any]:
        """Count the tokens of the prompt that ``create`` would make from the same body."""
        _, _, job, path = await self._read_job(request)
        (source,) = job.question.prompts
        assert isinstance(source, Conversation)
        prompt = await count_prompt_tokens(
            path,
            job.caller,
            "responses",
            arrival,
            lambda limits: render_prompt(source, path, job.caller, limits),
        )
        return {"object": "response.input_tokens", "input_tokens": prompt.num_tokens}

    async def _read_job(self, request: Request) -> tuple[ResponsesRequest, ItemList, Job, Pipeline]:
        """Return the request, its own items, and the job of the whole conversation."""
        gateway = self._gateway
        caller = find_caller(request.scope)
        body = await read_body(request, caller.charge, gateway.settings.max_body_bytes)
        pipeline = gateway.require()
        reader = gateway.cipher.reader(caller.owner)
        media = MediaPolicy.of(pipeline.served_model, caller.notices)
        fields, items = await caller.charge.parse(lambda: _read_request(body, reader, media))
        check_storage(fields)
        self._should_store(fields)
        conversation = fields.conversation_id
        history = (
            await self._load_history(fields.previous_response_id, caller, len(body))
            if conversation is None
            else await self._conversations.history(conversation, caller, len(body), items)
        )
        items = await resolve_references(items, gateway, caller, history)
        job = await caller.charge.parse(
            lambda: make_responses_job(
                fields, [*history, *items], pipeline.served_model, caller, media
            )
        )
        return fields, items, job, pipeline

    def _respond_now(self, record: ResponseRecord, pipeline: Pipeline, run: Run) -> Response:
        job, timing = record.job, self._gateway.timing
        if job.display.stream:
            stream = ResponseStream(job, make_encoding_context(pipeline), record.thinking)
            encoder = PaddedStream(stream) if job.display.obfuscates else stream
            run = record.store_after(run, stream.builder)
            return StreamedResponse(run, encoder, openai_body, timing)
        fold = ResponseFold(job, make_encoding_context(pipeline), record.thinking)
        return FoldedResponse(record.store_after(run, fold.builder), fold, openai_body)

    async def _respond_in_background(
        self, record: ResponseRecord, pipeline: Pipeline, work: AcceptedWork
    ) -> Response:
        """Respond once the work is accepted. Raises GatewayError, and then nothing is stored."""
        job = record.job
        stream = LoggedStream(job, make_encoding_context(pipeline), record.thinking)
        response = stream.builder.response()
        run = BackgroundRun(job.id, record.owner, stream, lambda: record.settle(stream.builder))
        await run.start(work, partial(record.begin, response))
        self._runs.add(run)
        charge = job.caller.charge
        charge.extend()
        assert run.task is not None
        run.task.add_done_callback(lambda _: charge.close())
        if not job.display.stream:
            return json_response(response)
        return self._follow(run, job.caller, job.display.obfuscates)

    async def get(self, id: str, caller: Caller) -> dict[str, Any]:
        run = self._runs.get(id, caller.owner)
        response = None if run is None else run.response
        return response or _current_response(await self._load(id, caller))

    async def stream(self, id: str, caller: Caller, number: int, obfuscates: bool) -> Response:
        run = self._runs.get(id, caller.owner)
        if run is None:
            await self._load(id, caller)
            raise InvalidRequest(
                f"The events of '{id}' are not available here: only a response created with "
                "'background' can be streamed again, for a limited time, by its own gateway.",
                param="stream",
            )
        run.check(number)
        response = run.response or (await self._load(id, caller)).response
        # The largest frame contains the whole response.
        caller.charge.hold_stored(len(orjson.dumps(response)))
        return self._follow(run, caller, obfuscates, number)

    async def cancel(self, id: str, caller: Caller) -> dict[str, Any]:
        run = self._runs.get(id, caller.owner)
        if run is not None:
            await run.cancel()
            return await self.get(id, caller)
        record = await self._load(id, caller)
        response = _current_response(record)
        if not response.get("background"):
            raise InvalidRequest(
                f"'{id}' was not created with 'background', so it cannot be cancelled.",
                param="response_id",
            )
        if response["status"] != "in_progress":
            return response
        return await self._cancel_elsewhere(record, caller)

    async def _cancel_elsewhere(self, record: StoredResponse, caller: Caller) -> dict[str, Any]:
        """Mark the response as cancelled; the gateway that runs it stops it."""
        assert self._gateway.store is not None
        cancelled_response = record.response | {"status": "cancelled"}
        if await self._gateway.store.settle(replace(record, response=cancelled_response)):
            return cancelled_response
        return _current_response(await self._load(record.id, caller))

    def _follow(
        self, run: BackgroundRun, caller: Caller, obfuscates: bool, number: int = -1
    ) -> Response:
        store = self._gateway.store

        async def load_stored() -> dict[str, Any] | None:
            record = None if store is None else await store.get(run.id, caller.owner)
            return None if record is None else record.response

        frames = run.follow(number, load_stored)
        frames = pad_each(frames) if obfuscates else frames
        return ReplayedResponse(frames, self._gateway.timing)

    async def delete(self, id: str, caller: Caller) -> dict[str, Any]:
        store = self._gateway.store
        run = self._runs.get(id, caller.owner)
        if run is not None:
            await run.cancel()
            self._runs.forget(id)
        if store is None or not await store.delete(id, caller.owner):
            raise _not_found(id)
        return {"id": id, "object": "response", "deleted": True}

    async def items(self, id: str, caller: Caller) -> ItemList:
        return (await self._load(id, caller)).input

    async def _load(self, id: str, caller: Caller) -> StoredResponse:
        store = self._gateway.store
        response = None if store is None else await store.get(id, caller.owner)
        if response is None:
            raise _not_found(id)
        return response

    def _thinking(self, request: ResponsesRequest, owner: str) -> ReasoningStyle:
        encrypt = (
            self._gateway.cipher.writer(owner) if ENCRYPTED in (request.include or ()) else None
        )
        return ReasoningStyle(request.wants_summary, encrypt)

    def _should_store(self, request: ResponsesRequest) -> bool:
        if self._gateway.store is not None:
            return request.store is not False
        if request.store or request.background:
            raise InvalidRequest(
                "This gateway stores no responses; it was started with --responses-store none.",
                param="store" if request.store else "background",
            )
        return False

    async def _load_history(
        self, id: str | None, caller: Caller, added_bytes: int
    ) -> list[ItemDict]:
        """Return the items up to and including the response ``id``, oldest first."""
        if id is None:
            return []
        store = self._gateway.store
        num_bytes = None if store is None else await store.history_bytes(id, caller.owner)
        if store is None or num_bytes is None:
            raise NotFound(
                f"Previous response with id '{id[:80]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        check_history(
            num_bytes + added_bytes, self._gateway.settings.max_body_bytes, "previous_response_id"
        )
        caller.charge.hold(num_bytes)
        return [*await store.history(id, caller.owner)]


def _read_request(
    body: bytes, reader: Callable[[str], str], media: MediaPolicy
) -> tuple[ResponsesRequest, ItemList]:
    request = parse(body, ResponsesRequest, media.notices)
    return request, read_input(request, reader, media)


def _current_response(record: StoredResponse) -> dict[str, Any]:
    """Return the response in its current state: failed if its gateway no longer renews it."""
    response = record.response
    if response["status"] not in ("queued", "in_progress"):
        return response
    if record.held_until is not None and record.held_until > time.time():
        return response | {"status": "in_progress"}
    error = {
        "code": "server_error",
        "message": "The gateway stopped before the response was complete.",
    }
    return response | {"status": "failed", "error": error}


def _not_found(id: str) -> NotFound:
    return NotFound(f"Response with id '{id[:80]}' not found.", param="response_id")


async def maintain_store(
    store: SqlResponseStore | None, runs: BackgroundRuns, every_s: float = HOLD_S / 4
) -> None:
    """Renew running responses and delete expired ones, until cancelled."""
    swept = time.monotonic()
    while store is not None:
        await asyncio.sleep(every_s)
        await runs.hold(store)
        if time.monotonic() - swept >= SWEEP_S:
            swept = time.monotonic()
            await store.sweep()
