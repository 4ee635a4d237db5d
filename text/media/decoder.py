"""Program that decodes images within limits of memory and CPU time.

    python -m eaglegate.text.media.decoder MAX_PIXELS MAX_ASPECT CPU_SECONDS

A question is the number of bytes of an encoded image, on a line of its own, and these bytes. The
answer is the image's width and height, or a message for the client. If an image takes too long, the
kernel kills the process. See ``text/limited_child.py``.

Images are decoded here although only their size is returned. An engine decodes the same bytes in
the gateway's process, where a hostile image would use up its time and memory. So the steps are
those of vLLM: decode, rotate by EXIF, convert to RGB.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from time import process_time
from typing import BinaryIO

from PIL import GifImagePlugin, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401
from PIL import Image as Pillow

MEMORY_BYTES = 1 << 30
HEADER_CPU_S = 0.25
"""CPU seconds for all before the pixels. The engine reads it again for every answer, in Python."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats by Pillow's names. It opens no other."""
DAMAGED = (
    "An image must be whole; this one is damaged, cut off, or has too much metadata. "
    "Encode it again."
)
TOO_MUCH_MEMORY = (
    f"An image may take at most {MEMORY_BYTES} bytes of memory to be decoded; this one takes more. "
    "Scale it down."
)


class TooLarge(ValueError):
    """The size in the image's header is over a limit."""


def decode(data: bytes, max_pixels: int, max_aspect: int) -> tuple[int, int] | str:
    """Return an image's width and height, or the reason why it is refused."""
    start = process_time()
    try:
        with Pillow.open(BytesIO(data), formats=FORMATS) as image:
            if process_time() - start > HEADER_CPU_S:
                return DAMAGED
            size = image.size
            _check_size(*size, max_pixels, max_aspect)
            image.load()
            with suppress(Exception):  # as in vLLM, which leaves such an image as it is
                ImageOps.exif_transpose(image, in_place=True)
            if image.mode != "RGB":
                image.convert("RGB")
    except TooLarge as error:
        return str(error)
    except Pillow.DecompressionBombError:  # more than twice the limit, before the size is known
        return _describe_pixels(f"more than {2 * max_pixels}", max_pixels)
    except MemoryError:
        return TOO_MUCH_MEMORY
    except Exception:  # decoders raise nearly any error for damaged data
        return DAMAGED
    return size


def _check_size(width: int, height: int, max_pixels: int, max_aspect: int) -> None:
    """Raises TooLarge."""
    if width * height > max_pixels:
        raise TooLarge(_describe_pixels(f"{width} x {height}", max_pixels))
    if max(width, height) > max_aspect * min(width, height):
        raise TooLarge(
            f"The longer side of an image may be at most {max_aspect} times the shorter one; this "
            f"one has {width} x {height} pixels. Crop it."
        )


def _describe_pixels(pixels: str, max_pixels: int) -> str:
    return f"An image may have at most {max_pixels} pixels; this one has {pixels}. Scale it down."


def read_questions(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the encoded image of each question."""
    while line := stream.readline():
        number, _, num_bytes = line.partition(b" ")
        data = stream.read(int(num_bytes))
        stream.readline()
        yield int(number), data


def main() -> None:
    max_pixels, max_aspect = map(int, sys.argv[1:3])
    cpu_s = float(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # The gateway handles these signals, and needs this process until its requests have finished.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
    warnings.simplefilter("ignore")
    Pillow.MAX_IMAGE_PIXELS = max_pixels
    print("true", flush=True)
    for number, data in read_questions(sys.stdin.buffer):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = decode(data, max_pixels, max_aspect)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([number, answer]), flush=True)


if __name__ == "__main__":
    main()
