"""Images of a conversation, and the tokens of a prompt that has them.

A prompt has one placeholder token for each image until the engine replaces it by the tokens of the
image. Limits, quotas and usage count the tokens after that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eaglegate.engine.base import CountsImages, Engine
from eaglegate.engine.errors import EngineDead, EngineError
from eaglegate.server.access.budget import RequestCharge
from eaglegate.server.errors import (
    PROMPT_PARAM,
    InvalidRequest,
    TooManyRequests,
    Unavailable,
    from_engine,
)
from eaglegate.server.generation.job import Conversation, Prompt
from eaglegate.server.generation.prompt import Measure
from eaglegate.text.media.image import Image
from eaglegate.text.media.source import ImageReaderLost, ImageRefused, ImageSource

if TYPE_CHECKING:
    from eaglegate.text.media.reader import ImageReader

POLL_S = 0.05
RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class ImageIntake:
    """Reads the images of prompts, and counts their tokens."""

    engine: Engine
    reader: ImageReader
    placeholder: int
    """Id of the token that stands for an image."""
    wait_s: float = 0.0
    """Longest wait for an engine that restarts."""

    async def read(
        self, sources: Sequence[ImageSource], charge: RequestCharge
    ) -> tuple[Image, ...]:
        """Return the images, and charge their bytes. Raises InvalidRequest and TooManyRequests."""
        if not sources:
            return ()
        try:
            images = await self.reader.read(sources)
        except ImageRefused as error:
            raise InvalidRequest(str(error), param=error.param) from error
        except ImageReaderLost as error:
            raise TooManyRequests(
                str(error), code="engine_overloaded", retry_after_s=error.retry_after_s
            ) from error
        charge.hold(sum(len(image.data) for image in images))
        return images

    async def add_images(self, prompt: Prompt, images: tuple[Image, ...]) -> Prompt:
        """Return a conversation's prompt with its images and its length. Raises GatewayError."""
        num_places = prompt.token_ids.count(self.placeholder)
        if num_places != len(images):
            raise InvalidRequest(
                f"The chat template of this model wrote {num_places} placeholders for "
                f"{len(images)} images: it shows no images in messages of some role. Send images "
                "in messages of the user.",
                param="messages",
            )
        length = await self._count(prompt.token_ids, images)
        return replace(prompt, images=images, expanded_length=length)

    def make_measure(self, images: Sequence[Image]) -> Measure:
        """Return the measure of a conversation whose oldest images may have been dropped."""
        lengths: list[int] = []

        async def measure(conversation: Conversation, token_ids: Sequence[int]) -> int:
            if not lengths:
                lengths.extend([await self._count((self.placeholder,), [i]) for i in images])
            num_images = len(conversation.images)
            return len(token_ids) - num_images + sum(lengths[len(lengths) - num_images :])

        return measure

    async def _count(self, token_ids: Sequence[int], images: Sequence[Image]) -> int:
        """Return the number of a prompt's tokens with those of its images. Raises GatewayError."""
        end = time.monotonic() + self.wait_s
        while True:
            counter = self.engine.capability(CountsImages)
            try:
                if counter is not None:
                    return await counter.count_prompt(token_ids, images)
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
