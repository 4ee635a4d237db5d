"""Reading of a request's images: the bytes from their URLs, then a trial of decoding them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglegate.text.media.data_url import read_data_url
from eaglegate.text.media.decoder_pool import DecoderPool
from eaglegate.text.media.formats import detect_format
from eaglegate.text.media.image import Image
from eaglegate.text.media.source import ImageCharge, ImageLimits, ImageRefused, ImageSource

if TYPE_CHECKING:
    from eaglegate.text.media.fetch import ImageFetcher

MAX_SIZES = 4096
LOOK_PIXELS = 1 << 20
"""Price of a look at an image's header, which tells the price of the image."""
NO_CHARGE = ImageCharge()


class ImageReader:
    """Reader of the images of all requests. It starts processes when the first image arrives.

    A request's images are read one after another, each in a turn of its own, so requests with many
    images share the processes with the others. A conversation repeats its images in every
    turn, so images that were decoded once are remembered by their digest.
    """

    def __init__(self, limits: ImageLimits, fetcher: ImageFetcher | None = None) -> None:
        """Without a ``fetcher``, images come in data: URLs only."""
        self._limits, self._fetcher = limits, fetcher
        self._decoders = DecoderPool(limits.max_pixels)
        self._sizes: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """Width and height of decoded images, by owner and digest."""

    async def read(
        self,
        sources: Sequence[ImageSource],
        owner: str | None = None,
        charge: ImageCharge = NO_CHARGE,
    ) -> tuple[Image, ...]:
        """Read a request's images.

        An image that its owner sent before is read sooner. Another owner cannot tell. Without an
        owner nothing is remembered.

        Raises ImageRefused, what ``charge`` raises, and ImageReaderLost if the same request may
        succeed later.
        """
        limit, images = self._limits.max_images, list[Image]()
        if len(sources) > limit:
            raise ImageRefused(
                sources[limit].param,
                f"A request may have at most {limit} images; this one has {len(sources)}. Send "
                "fewer.",
            )
        for source in sources:
            try:
                data = await self._load(source.url, charge)
                charge.hold(len(data))
                images.append(await self._decode(data, owner, charge))
                self._check_totals(images)
            except ValueError as error:
                raise ImageRefused(source.param, str(error)) from None
        return tuple(images)

    async def aclose(self) -> None:
        await self._decoders.aclose()
        if self._fetcher is not None:
            await self._fetcher.aclose()

    async def _load(self, url: str, charge: ImageCharge) -> bytes:
        """Return the bytes behind a URL. Raises ValueError with a message for the client."""
        if url[:5].lower() == "data:":
            return await asyncio.to_thread(read_data_url, url, self._limits.max_bytes)
        if self._fetcher is None:
            raise ValueError("This gateway fetches no images; send a data: URL.")
        async with charge.fetch():
            return await self._fetcher.fetch(url, self._limits.max_bytes)

    def _check_totals(self, images: Sequence[Image]) -> None:
        """Raises ValueError with a message for the client."""
        num_bytes = sum(len(image.data) for image in images)
        num_pixels = sum(image.width * image.height for image in images)
        for unit, total, limit in (
            ("bytes", num_bytes, self._limits.max_request_bytes),
            ("pixels", num_pixels, self._limits.max_request_pixels),
        ):
            if total > limit:
                raise ValueError(
                    f"The images of a request may have at most {limit} {unit} together; these have "
                    "more. Send fewer or smaller ones."
                )

    async def _decode(self, data: bytes, owner: str | None, charge: ImageCharge) -> Image:
        """Raises ValueError with a message for the client, and ImageReaderLost."""
        name = detect_format(data)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        size = None if owner is None else self._sizes.get((owner, digest))
        if size is None:
            async with charge.decode(LOOK_PIXELS):
                (width, height), _ = await self._decoders.decode(data, name, "look")
            async with charge.decode(width * height):
                size, _ = await self._decoders.decode(data, name, "check")
        if owner is not None:
            self._remember((owner, digest), size)
        return Image(data, name, *size, digest)

    def _remember(self, key: tuple[str, str], size: tuple[int, int]) -> None:
        self._sizes[key] = size
        self._sizes.move_to_end(key)
        if len(self._sizes) > MAX_SIZES:
            self._sizes.popitem(last=False)
