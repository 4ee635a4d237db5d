"""Prompts with images, on their way into vLLM.

vLLM's renderer replaces each placeholder of a prompt by the tokens of its image and makes the
image's features. Its front end keeps the hash of the features that it has sent, and the engine
process keeps the features. The next prompt with the same image is sent without them, whoever sends
it. If features were made but never sent, the engine does not have them, and that prompt fails. So a
prompt that was rendered is always sent, also when its client has left; if vLLM refuses it, the
hashes are forgotten; and a prompt that fails for missing features is rendered and sent once more.

vLLM never sees a client's own name for an image, because it would serve the first image of that
name; nor a URL, because it would fetch it; nor an encoded image, because it would decode it in this
process and try any decoder. It gets pixels from the same program that has checked the image,
scaled down to what the model's processor takes.

Only engines of models that read images import this module.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import PIL.Image
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from eaglegate.engine.errors import EngineDead, EngineError, EngineFailed, RequestRejected
from eaglegate.engine.types import EngineRequest, ImageInput
from eaglegate.engine.vllm_backend import translate
from eaglegate.engine.vllm_backend.image_sizes import Fit
from eaglegate.engine.vllm_backend.outputs import StepOutputProcessor
from eaglegate.engine.vllm_backend.step_queue import StepQueue
from eaglegate.engine.vllm_fields import check_placeholders
from eaglegate.text.media.decoder_pool import DecoderPool
from eaglegate.text.media.image import Image, find_placeholder
from eaglegate.text.media.source import ImageReaderLost

T = TypeVar("T")
log = logging.getLogger(__name__)

MODALITY = "image"
PROMPTS = 2
"""Prompts whose images are decoded at the same time: one while vLLM prepares the other. Images that
wait for their preparation would fill the memory after an engine's loss."""
MAX_COUNTS = 4096
"""Sizes of images whose number of tokens is remembered."""
MAX_REASON = 200
"""Most characters of an image processor's reason that a client is told."""


class ImageRenderer:
    """Takes prompts with images into one engine."""

    def __init__(
        self, llm: AsyncLLM, outputs: StepOutputProcessor, image_input: ImageInput, fit: Fit
    ) -> None:
        self._llm = llm
        self._outputs = outputs
        self._image_input = image_input
        self._fit = fit
        self._decoders = DecoderPool(sys.maxsize, 1)
        self._counts: dict[tuple[int, int], int] = {}
        """Numbers of tokens, by the size of a picture."""
        self._room = asyncio.Semaphore(PROMPTS)
        self._tasks: set[asyncio.Task[Any]] = set()
        """Tasks that a client's leaving does not end; asyncio itself would forget them."""

    async def aclose(self) -> None:
        await self._decoders.aclose()

    async def count(self, image: Image) -> int:
        """Return the number of an image's tokens, which its size decides. Raises EngineError.

        The features of a blank image go into a cache of their own, because the engine does not get
        them.
        """
        size = self._fit(image.width, image.height)
        if size not in self._counts:
            prompt, blank = [self._image_input.placeholder], PIL.Image.new("RGB", size)
            rendered = await self._render(prompt, [blank], None, counts_only=True)
            if len(self._counts) >= MAX_COUNTS:
                self._counts.clear()
            self._counts[size] = len(rendered["prompt_token_ids"])
        return self._counts[size]

    async def open_request(self, request: EngineRequest, adapter: LoRARequest | None) -> StepQueue:
        """Render and send a request, and return the queue of its steps. Raises EngineError.

        Once its images are decoded, it is sent also if the client leaves.
        """
        self._check(request.prompt, request.images)
        if not request.images:
            return await self._outputs.open_request(self._llm, request, adapter)
        if request.sampling.prompt_logprobs is not None:
            raise RequestRejected(
                "Log probabilities of a prompt with images cannot be given.", "prompt_logprobs"
            )
        await self._room.acquire()
        try:
            pictures = [await self._decode(*numbered) for numbered in enumerate(request.images)]
        except BaseException:
            self._room.release()
            raise
        task = self._keep(self._send(request, adapter, pictures))
        task.add_done_callback(lambda _: self._room.release())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._abandon)
            raise

    async def _decode(self, index: int, image: Image) -> PIL.Image.Image:
        """Decode an image of a prompt. Raises RequestRejected and EngineFailed."""
        width, height = self._fit(image.width, image.height)
        task = f"{width}x{height}"
        try:
            size, pixels = await self._decoders.decode(image.data, image.format, task)
        except ValueError as error:
            raise RequestRejected(f"Image {index} cannot be read: {_shorten(error)}.") from error
        except ImageReaderLost as error:
            raise EngineFailed(str(error)) from error
        if size != (image.width, image.height):
            raise RequestRejected(
                f"Image {index} cannot be read: its size is not the one it was checked with."
            )
        return await asyncio.to_thread(PIL.Image.frombytes, "RGB", (width, height), pixels)

    def _abandon(self, task: asyncio.Task[StepQueue]) -> None:
        """End a request whose client left before it was sent."""
        if task.cancelled() or task.exception() is not None:
            return
        self._keep(self._outputs.close_request(self._llm, task.result()))

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(
        self,
        request: EngineRequest,
        adapter: LoRARequest | None,
        pictures: Sequence[PIL.Image.Image],
    ) -> StepQueue:
        rendered = await self._render(request.prompt, pictures, request.cache_salt)
        try:
            return await self._outputs.send(self._llm, request, adapter, rendered)
        except EngineDead:
            raise
        except BaseException:
            self._forget(rendered)
            raise

    def _forget(self, rendered: dict[str, Any]) -> None:
        """Forget the hashes of features that were not sent."""
        cache = self._llm.renderer.mm_processor_cache
        if cache is not None:
            for name in rendered["mm_hashes"].get(MODALITY, ()):
                cache.invalidate(name)

    def _check(self, prompt: Sequence[int], images: Sequence[Image]) -> None:
        """Check that there is one placeholder per image, and not too many images.

        vLLM takes a placeholder without an image for a word, and fails for lack of one.
        """
        limit = self._image_input.max_images
        if len(images) > limit:
            raise RequestRejected(
                f"A prompt may have at most {limit} images; this one has {len(images)}.", "images"
            )
        check_placeholders(prompt, images, self._image_input.placeholder)

    async def _render(
        self,
        prompt: Sequence[int],
        pictures: Sequence[PIL.Image.Image],
        cache_salt: str | None,
        *,
        counts_only: bool = False,
    ) -> dict[str, Any]:
        """Return vLLM's input for the engine: expanded ids, features, hashes and their places."""
        tokens = TokensPrompt(
            prompt_token_ids=list(prompt), multi_modal_data={MODALITY: [*pictures]}
        )
        if cache_salt:
            tokens["cache_salt"] = cache_salt
        render = partial(self._llm.renderer.render_cmpl_async, [tokens], skip_mm_cache=counts_only)
        try:
            try:
                (rendered,) = await render()
            except AssertionError:  # vLLM has just forgotten a hash, for another request
                (rendered,) = await render()
        except Exception as error:
            raise convert_image_error(error) from error
        return dict(rendered)


def convert_image_error(error: Exception) -> EngineError:
    """Convert an error of vLLM's renderer, which names its reason in the cause, if anywhere."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if isinstance(error, VLLMClientError) or isinstance(cause, VLLMClientError):
        return translate.convert_error(cause if isinstance(cause, VLLMClientError) else error)
    if isinstance(cause, ValueError):
        return RequestRejected(f"The model cannot take these images: {_shorten(cause)}.")
    log.warning("images could not be processed (%s)", type(cause).__name__)
    return EngineFailed(f"The images could not be processed ({type(cause).__name__}).")


def _shorten(error: Exception) -> str:
    """Return the first line of an error's message, without a stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:MAX_REASON].rstrip(".")


def read_image_input(llm: AsyncLLM) -> ImageInput | None:
    """Read how a model with other inputs than text takes images; None if it does not."""
    model = llm.vllm_config.model_config
    limit = llm.renderer.get_mm_processor().info.allowed_mm_limits.get(MODALITY, 0)
    placeholder = find_placeholder(model.hf_config.to_dict())
    if not limit:
        return None
    if placeholder is None:
        log.warning("images are refused: no token of this model's configuration stands for one")
        return None
    return ImageInput(placeholder, limit)
