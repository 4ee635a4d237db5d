"""Images of a conversation, and the tokens of a prompt that has them.

A prompt has one placeholder token for each image until the engine replaces it by the tokens of the
image. Limits, quotas and usage count the tokens after that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from eaglegate.engine.base import CountsImages, Engine
from eaglegate.engine.errors import EngineDead, EngineError
from eaglegate.server.access.budget import RequestCharge
from eaglegate.server.access.caller import Caller, Requester
from eaglegate.server.access.prompt_turns import STEPS, PromptTurns
from eaglegate.server.errors import (
    PROMPT_PARAM,
    InvalidRequest,
    TooManyRequests,
    Unavailable,
    from_engine,
)
from eaglegate.server.generation.job import Conversation, Prompt, is_result
from eaglegate.server.generation.prompt import Measure
from eaglegate.text.media.image import Image
from eaglegate.text.media.source import (
    ImageCharge,
    ImageReaderLost,
    ImageRefused,
    ImageSource,
)
from eaglegate.text.rendering.base import Renderer
from eaglegate.text.rendering.template import IMAGE, count_images

if TYPE_CHECKING:
    from eaglegate.text.media.reader import ImageReader

POLL_S = 0.05
RETRY_S = 5.0
DECODED_PIXELS = 32 << 20
"""Pixels that are decoded at the same time, for each class of keys: one of the largest images."""
LONGEST_S = 60.0
"""Longest turn of an image: two attempts to decode it on a busy machine."""
FETCHES = 8
"""Images that are fetched at the same time for one client: half of all (``ImageFetcher``)."""
COUNTS = 2
"""Images that the engine counts at the same time, for each class of keys."""


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {}}}
PROBE: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [IMAGE]},
)


def move_images(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Move the images of tool results to the user's message after them, or to a new one."""
    moved: list[Mapping[str, str]] = []
    for message in messages:
        if is_result(message) and count_images(message):
            texts = [part["text"] for part in message["content"] if part != IMAGE]
            moved += [IMAGE] * count_images(message)
            yield {**message, "content": "\n".join(texts)}
            continue
        if moved and not is_result(message):
            if message["role"] == "user":
                message = {**message, "content": [*moved, *list_parts(message["content"])]}
            else:
                yield {"role": "user", "content": moved}
            moved = []
        yield message
    if moved:
        yield {"role": "user", "content": moved}


def list_parts(content: str | Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def make_turns(limit: int) -> PromptTurns:
    """Return turns that begin while less than ``limit`` is inside."""
    return PromptTurns(lambda: limit // STEPS, longest_s=LONGEST_S)


@dataclass(slots=True)
class PromptImages:
    """Reads the images of prompts, and counts their tokens."""

    engine: Engine
    reader: ImageReader
    placeholder: int
    """Id of the token that stands for an image."""
    wait_s: float = 0.0
    """Longest wait for an engine that restarts."""
    decodes: PromptTurns = field(default_factory=lambda: make_turns(DECODED_PIXELS))
    """Turns of images to be decoded, each by its pixels."""
    counts: PromptTurns = field(default_factory=lambda: make_turns(COUNTS))
    fetches: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary
    )
    """Turns of images to be fetched, by client. A host that is silent holds up its client only."""
    _shows_results: bool | None = field(default=None, init=False)
    """True if the template shows images in tool results; None before the first one."""

    async def read(self, sources: Sequence[ImageSource], caller: Caller) -> tuple[Image, ...]:
        """Return the images, and charge their bytes. Raises GatewayError."""
        if not sources:
            return ()
        charge = caller.charge
        charge.take_images(len(sources))
        try:
            return await self.reader.read(
                sources, charge.name or "", _Charge(self, charge, caller.to_requester())
            )
        except ImageRefused as error:
            raise InvalidRequest(str(error), param=error.param) from error
        except ImageReaderLost as error:
            raise TooManyRequests(
                str(error), code="engine_overloaded", retry_after_s=error.retry_after_s
            ) from error

    async def arrange(self, conversation: Conversation, renderer: Renderer) -> Conversation:
        """Return the conversation with its images where the model's template shows them.

        Some templates show no images in tool results. Then the images go to a message of the user
        after the results.
        """
        in_results = any(is_result(m) and count_images(m) for m in conversation.messages)
        if not in_results or conversation.template is not None:
            return conversation
        if self._shows_results is None:
            self._shows_results = await asyncio.to_thread(self._probe, renderer)
        if self._shows_results:
            return conversation
        return replace(conversation, messages=tuple(move_images(conversation.messages)))

    def _probe(self, renderer: Renderer) -> bool:
        """Return True if the model's template shows an image in a tool result."""
        try:
            return self.placeholder in renderer.render_chat(PROBE, None)
        except ValueError:
            return False

    async def add_images(self, prompt: Prompt, images: tuple[Image, ...], caller: Caller) -> Prompt:
        """Return a conversation's prompt with its images and its length. Raises GatewayError."""
        num_places = prompt.token_ids.count(self.placeholder)
        if num_places != len(images):
            raise InvalidRequest(
                f"The chat template of this model wrote {num_places} placeholders for "
                f"{len(images)} images: it shows no images in messages of some role. Send images "
                "in messages of the user.",
                param="messages",
            )
        lengths = await self._count_all(images, caller)
        length = len(prompt.token_ids) - num_places + sum(lengths)
        return replace(prompt, images=images, expanded_length=length)

    def make_measure(self, images: Sequence[Image], caller: Caller) -> Measure:
        """Return the measure of a conversation whose oldest images may have been dropped."""
        lengths: list[int] = []

        async def measure(conversation: Conversation, token_ids: Sequence[int]) -> int:
            if not lengths:
                lengths.extend(await self._count_all(images, caller))
            num_images = len(conversation.images)
            return len(token_ids) - num_images + sum(lengths[len(lengths) - num_images :])

        return measure

    async def _count_all(self, images: Sequence[Image], caller: Caller) -> list[int]:
        requester = caller.to_requester()
        return [await self._count(image, requester) for image in images]

    async def _count(self, image: Image, requester: Requester) -> int:
        """Return the number of an image's tokens. Raises GatewayError."""
        end = time.monotonic() + self.wait_s
        while True:
            counter = self.engine.capability(CountsImages)
            try:
                if counter is not None:
                    async with self.counts.turn(requester, 1):
                        return await counter.count_image(image)
            except EngineDead:
                pass
            except EngineError as error:
                raise from_engine(error) from error
            if time.monotonic() >= end:
                reason = "No engine that reads images is running; try again."
                raise Unavailable(reason, code="engine_dead", retry_after_s=RETRY_S)
            await asyncio.sleep(POLL_S)

    def check_text(self, token_ids: Sequence[int], api: str) -> None:
        """Raise InvalidRequest for a placeholder in a prompt without images."""
        if self.placeholder in token_ids:
            param = PROMPT_PARAM.get(api, "messages")
            raise InvalidRequest(
                f"'{param}' contains the token {self.placeholder}, which stands for an image, "
                "without an image. Leave it out, and send images as parts of messages.",
                param=param,
            )


@dataclass(frozen=True, slots=True)
class _Charge(ImageCharge):
    """Charges of one request's images, with turns in the order of admission."""

    images: PromptImages
    charge: RequestCharge
    requester: Requester

    def hold(self, num_bytes: int) -> None:
        self.charge.hold(num_bytes)

    def fetch(self) -> asyncio.Semaphore:
        return self.images.fetches.setdefault(self.requester.flow, asyncio.Semaphore(FETCHES))

    @asynccontextmanager
    async def decode(self, num_pixels: int) -> AsyncIterator[None]:
        async with self.images.decodes.turn(self.requester, num_pixels):
            self.charge.check_pixels(num_pixels)
            yield
