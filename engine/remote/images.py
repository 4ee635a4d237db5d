"""Images of prompts for a vLLM worker: whether it reads them, and how many tokens they become."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import sha256
from io import BytesIO
from uuid import uuid4

from eaglegate.engine.errors import EngineFailed, RequestRejected
from eaglegate.engine.remote import wire
from eaglegate.engine.remote.connection import WorkerConnection
from eaglegate.engine.remote.reading import (
    compute_limits,
    read_integer,
    read_object,
)
from eaglegate.engine.types import EngineRequest, ImageInput, Sampling
from eaglegate.text.media.image import Image

MAX_IMAGES = 999
"""vLLM's own limit, if a worker has no other one."""
MAX_TOKENS = 1 << 20
"""Most tokens that one image may become."""
KNOWN = 4096
"""Images whose number of tokens is remembered."""
PROBE_SIZE = 56


class ImageCounts:
    """Numbers of tokens of images on one worker.

    The worker is asked by a request for one token after the image alone. It keeps what it has made
    of the image, so that the prompt itself need not make it again.
    """

    def __init__(self, connection: WorkerConnection, image_input: ImageInput) -> None:
        self._connection = connection
        self._placeholder = image_input.placeholder
        self._known: OrderedDict[str, int] = OrderedDict()

    async def count(self, image: Image) -> int:
        """Return the number of an image's tokens. Raises EngineError."""
        count = self._known.get(image.digest)
        if count is None:
            count = await count_tokens(self._connection, self._placeholder, image)
            if count is None:
                raise EngineFailed("The worker did not look at an image.")
        self._known[image.digest] = count
        self._known.move_to_end(image.digest)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return count


async def count_tokens(connection: WorkerConnection, placeholder: int, image: Image) -> int | None:
    """Ask a worker how many tokens an image becomes; None if it ignores images. Raises
    EngineError."""
    request = EngineRequest(
        id=f"image-{uuid4().hex}",
        prompt=(placeholder,),
        sampling=Sampling(max_tokens=1, temperature=0.0, ignore_eos=True),
        images=(image,),
        depth=0,
        expanded_length=MAX_TOKENS,
    )
    body = wire.build_body(request, stream=False, depth=False) | {"return_token_ids": True}
    answer = read_object(
        await connection.fetch(wire.GENERATE, body, {}, compute_limits(request)), "the answer"
    )
    if not answer.get("mm_placeholders"):
        return None
    token_ids = answer.get("prompt_token_ids")
    size = len(token_ids) if isinstance(token_ids, list) else None
    return read_integer(size, "the size of prompt_token_ids", 1, MAX_TOKENS)


async def probe_images(connection: WorkerConnection, placeholder: int | None) -> ImageInput | None:
    """Find out whether a worker reads images; None if it does not. Raises EngineDead.

    An ignored image gets an answer as well, so the answer must have its place in the prompt.
    """
    if placeholder is None:
        return None
    picture = await asyncio.to_thread(draw_probe)
    try:
        count = await count_tokens(connection, placeholder, picture)
    except (RequestRejected, EngineFailed):
        return None
    return None if count is None else ImageInput(placeholder, MAX_IMAGES)


def draw_probe() -> Image:
    """Draw a grey square."""
    import PIL.Image

    buffer = BytesIO()
    PIL.Image.new("RGB", (PROBE_SIZE, PROBE_SIZE), (128, 128, 128)).save(buffer, "PNG")
    data = buffer.getvalue()
    return Image(data, "png", PROBE_SIZE, PROBE_SIZE, sha256(data).hexdigest())
