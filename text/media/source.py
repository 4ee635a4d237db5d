"""Images of a request before they are read, what limits them, and how they are refused."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from msgspec import Struct


class ImageSource(Struct, frozen=True):
    """An image of a request, as its URL."""

    param: str
    """Path of the URL in the request, such as ``messages[0].content[1].image_url.url``."""
    url: str
    """A data: URL, or an http or https URL of a host that the operator allows."""

    def __repr__(self) -> str:
        """Return a description without the URL, which may hold the image or a credential."""
        return f"ImageSource({self.param})"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits on the images of one request."""

    max_bytes: int = 20 << 20
    """Maximum number of bytes of an encoded image."""
    max_pixels: int = 32 << 20
    """Maximum number of pixels of an image."""
    max_images: int = 20
    """Maximum number of images in a request."""
    max_request_bytes: int = 64 << 20
    """Maximum number of bytes of a request's encoded images together."""
    max_request_pixels: int = 128 << 20
    """Maximum number of pixels of a request's images together."""


class ImageCharge:
    """Charges of one request's images, and their turns. This one charges nothing, and never waits.

    Each call may raise, which refuses the request.
    """

    def hold(self, num_bytes: int) -> None:
        """Charge the bytes of an image, before the next one is fetched."""

    def fetch(self) -> AbstractAsyncContextManager[object]:
        """Return the turn of an image to be fetched."""
        return nullcontext()

    def decode(self, num_pixels: int) -> AbstractAsyncContextManager[object]:  # noqa: ARG002
        """Return the turn of an image to be decoded."""
        return nullcontext()


class ImageRefused(ValueError):
    """An image was refused. ``rule`` is a message for the client."""

    def __init__(self, param: str, rule: str) -> None:
        super().__init__(f"{param}: {rule}")
        self.param = param
        self.rule = rule


class ImageReaderLost(RuntimeError):
    """The process that decodes images was lost more than once.

    The same request may succeed later, after ``retry_after_s`` seconds.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
