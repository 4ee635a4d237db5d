"""Reading of a request's images: the bytes from their URLs, then a trial of decoding them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from eaglegate.text.media.data_url import read_data_url
from eaglegate.text.media.decoder_pool import DecoderPool
from eaglegate.text.media.formats import detect_format
from eaglegate.text.media.hosts import parse_host
from eaglegate.text.media.image import Image
from eaglegate.text.media.source import ImageLimits, ImageRefused, ImageSource

if TYPE_CHECKING:
    from eaglegate.text.media.fetch import ImageFetcher

MAX_SIZES = 4096
NO_TURN = nullcontext()


class ImageReader:
    """Reader of the images of all requests. It starts processes when the first image arrives.

    A request's images are decoded one after another, so requests with many images share the
    processes with the others. A conversation repeats its images in every turn, so images that were
    decoded once are remembered by their digest.
    """

    def __init__(self, limits: ImageLimits, hosts: Sequence[str] = ()) -> None:
        """``hosts`` are those from which images may be fetched, as ``parse_host`` reads them."""
        self._limits = limits
        self._hosts = tuple(map(parse_host, hosts))
        self._decoders = DecoderPool(limits)
        self._fetcher: ImageFetcher | None = None
        self._sizes: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        """Width and height of decoded images, by owner and digest."""

    async def read(
        self,
        sources: Sequence[ImageSource],
        owner: str | None = None,
        hold: Callable[[int], None] = lambda _: None,
        turn: AbstractAsyncContextManager[Any] = NO_TURN,
    ) -> tuple[Image, ...]:
        """Read a request's images.

        An image that its owner sent before is read sooner. Another owner cannot tell. Without an
        owner nothing is remembered.

        ``hold`` gets the bytes of each image before the next one is fetched, and may raise. Images
        are decoded within ``turn``. They are fetched before it, because their hosts may be slow.

        Raises ImageRefused, and ImageReaderLost if the same request may succeed later.
        """
        limits = self._limits
        if len(sources) > limits.max_images:
            raise ImageRefused(
                sources[limits.max_images].param,
                f"A request may have at most {limits.max_images} images; this one has "
                f"{len(sources)}. Send fewer.",
            )
        encoded = await self._load_all(sources, hold)
        async with turn:
            return await self._decode_all(sources, encoded, owner)

    async def aclose(self) -> None:
        await self._decoders.aclose()
        if self._fetcher is not None:
            await self._fetcher.aclose()

    async def _load_all(
        self, sources: Sequence[ImageSource], hold: Callable[[int], None]
    ) -> list[bytes]:
        limit, num_bytes, encoded = self._limits.max_request_bytes, 0, []
        for source in sources:
            try:
                data = await self._load(source.url)
            except ValueError as error:
                raise ImageRefused(source.param, str(error)) from None
            num_bytes += len(data)
            if num_bytes > limit:
                raise ImageRefused(
                    source.param,
                    f"The images of a request may have at most {limit} bytes together; these have "
                    "more. Send fewer or smaller ones.",
                )
            hold(len(data))
            encoded.append(data)
        return encoded

    async def _load(self, url: str) -> bytes:
        """Return the bytes behind a URL. Raises ValueError with a message for the client."""
        if url[:5].lower() == "data:":
            return await asyncio.to_thread(read_data_url, url, self._limits.max_bytes)
        if not self._hosts:
            raise ValueError("This gateway fetches no images; send a data: URL.")
        return await self._get_fetcher().fetch(url, self._limits.max_bytes)

    def _get_fetcher(self) -> ImageFetcher:
        """Return the fetcher, whose imports and certificates no gateway needs before its first
        URL.
        """
        if self._fetcher is None:
            from eaglegate.text.media.fetch import ImageFetcher

            self._fetcher = ImageFetcher(self._hosts)
        return self._fetcher

    async def _decode_all(
        self, sources: Sequence[ImageSource], encoded: Sequence[bytes], owner: str | None
    ) -> tuple[Image, ...]:
        limit, num_pixels, images = self._limits.max_request_pixels, 0, []
        for source, data in zip(sources, encoded, strict=True):
            try:
                image = await self._decode(data, owner)
            except ValueError as error:
                raise ImageRefused(source.param, str(error)) from None
            num_pixels += image.width * image.height
            if num_pixels > limit:
                raise ImageRefused(
                    source.param,
                    f"The images of a request may have at most {limit} pixels together; these have "
                    "more. Send fewer or smaller ones.",
                )
            images.append(image)
        return tuple(images)

    async def _decode(self, data: bytes, owner: str | None) -> Image:
        """Raises ValueError with a message for the client, and ImageReaderLost."""
        name = detect_format(data, self._limits.formats)
        digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
        size = None if owner is None else self._sizes.get((owner, digest))
        if size is None:
            size = await self._decoders.decode(data)
        if owner is not None:
            self._remember((owner, digest), size)
        return Image(data, name, *size, digest)

    def _remember(self, key: tuple[str, str], size: tuple[int, int]) -> None:
        self._sizes[key] = size
        self._sizes.move_to_end(key)
        if len(self._sizes) > MAX_SIZES:
            self._sizes.popitem(last=False)
