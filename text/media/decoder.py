"""Program that decodes images within limits of memory and CPU time.

    python -m eaglegate.text.media.decoder MAX_PIXELS CPU_SECONDS

A question is a line ``NUMBER NUM_BYTES FORMAT TASK`` and so many bytes of an encoded image. The
answer is a message for the client, or the image's width and height:

- ``look``: as the header has them. No pixel is decoded.
- ``check``: as the image is shown. All of it is decoded.
- a size, ``WIDTHxHEIGHT``: the same, and the RGB bytes of the image, scaled to this size.

If an image takes too long, the kernel kills the process. See ``text/limited_child.py``. No other
process decodes what a client sent. The picture is the one that vLLM would make of the same bytes:
upright as its EXIF says, in RGB, transparent parts on white.
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

from PIL import GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401
from PIL import Image as Pillow

MEMORY_BYTES = 1 << 30
HEADER_CPU_S = 0.25
"""CPU seconds for all before the pixels, which are spent before an image has its price."""
MAX_ASPECT = 200
"""Largest ratio of an image's longer side to its shorter one. Models take no more than this."""
MAX_EXIF_BYTES = 64 << 10
ORIENTATION = 0x112
"""EXIF's tag."""
TRANSPOSITIONS = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
"""The way from the pixels to the image that is shown, by orientation."""
SIDEWAYS = (5, 6, 7, 8)
"""Orientations of an image that is shown as wide as its pixels are high."""
WHITE = (255, 255, 255)
DAMAGED = (
    "An image must be whole; this one is damaged, cut off, or has too much metadata. "
    "Encode it again."
)
TOO_MUCH_MEMORY = (
    f"An image may take at most {MEMORY_BYTES} bytes of memory to be decoded; this one takes more. "
    "Scale it down."
)
Answer = tuple[list[int] | str, bytes]


class Refused(ValueError):
    """An image is over a limit. The message is for the client."""


def answer(data: bytes, form: str, task: str, max_pixels: int) -> Answer:
    """Return the numbers and bytes that answer a question, or the reason of a refusal.

    Only ``form`` is decoded, a name of Pillow's.
    """
    start = process_time()
    try:
        with Pillow.open(BytesIO(data), formats=[form]) as image:
            if process_time() - start > HEADER_CPU_S:
                return DAMAGED, b""
            _check_size(*image.size, max_pixels)
            if task == "check":
                _check_only_format(data, form)
            return ([*image.size], b"") if task == "look" else _decode(image, task)
    except Refused as error:
        return str(error), b""
    except Pillow.DecompressionBombError:  # more than twice the limit, before the size is known
        return _describe_pixels(f"more than {2 * max_pixels}", max_pixels), b""
    except MemoryError:
        return TOO_MUCH_MEMORY, b""
    except Exception:  # decoders raise nearly any error for damaged data
        return DAMAGED, b""


def _check_only_format(data: bytes, form: str) -> None:
    """Raises Refused for an image that a worker could decode as another one.

    vLLM tries all of Pillow's formats, some of which ignore the first bytes.
    """
    Pillow.init()
    try:
        with Pillow.open(BytesIO(data), formats=[*Pillow.OPEN.keys() - {form}]) as other:
            name = other.format
    except Exception:  # no other decoder reads it
        return
    raise Refused(f"An image must have one format; this {form} is a {name}, too. Encode it again.")


def _decode(image: Pillow.Image, task: str) -> Answer:
    image.load()  # a PNG may have its EXIF behind its pixels
    orientation = _read_orientation(image)
    turn = -1 if orientation in SIDEWAYS else 1
    picture = _convert_to_rgb(image)
    if task == "check":
        return [*image.size[::turn]], b""
    width, height = [int(side) for side in task.split("x")][::turn]
    picture = picture.resize((width, height), Pillow.Resampling.BICUBIC)
    if orientation in TRANSPOSITIONS:
        picture = picture.transpose(TRANSPOSITIONS[orientation])
    return [*image.size[::turn]], picture.tobytes()


def _read_orientation(image: Pillow.Image) -> int:
    """Return the orientation by EXIF or XMP; 1 for an image that is shown as it is. Raises
    Refused.
    """
    text = str(image.info.get("Raw profile type exif", ""))  # in hexadecimal, as ImageMagick does
    num_bytes = max(len(image.info.get("exif", b"")), len(text) // 2)
    if num_bytes > MAX_EXIF_BYTES:
        raise Refused(
            f"An image may have at most {MAX_EXIF_BYTES} bytes of EXIF; this one has {num_bytes}. "
            "Leave it out."
        )
    with suppress(Exception):  # as in vLLM, which leaves such an image as it is
        return int(image.getexif().get(ORIENTATION, 1))
    return 1


def _convert_to_rgb(image: Pillow.Image) -> Pillow.Image:
    if image.mode == "RGB":
        return image
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode != "RGBA":
        image = image.convert("RGBA")
    picture = Pillow.new("RGB", image.size, WHITE)
    picture.paste(image, mask=image.getchannel("A"))
    return picture


def _check_size(width: int, height: int, max_pixels: int) -> None:
    """Raises Refused."""
    if width * height > max_pixels:
        raise Refused(_describe_pixels(f"{width} x {height}", max_pixels))
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise Refused(
            f"The longer side of an image may be at most {MAX_ASPECT} times the shorter one; this "
            f"one has {width} x {height} pixels. Crop it."
        )


def _describe_pixels(pixels: str, max_pixels: int) -> str:
    return f"An image may have at most {max_pixels} pixels; this one has {pixels}. Scale it down."


def read_questions(stream: BinaryIO) -> Iterator[tuple[int, bytes, str, str]]:
    """Yield the number, image, format and task of each question."""
    while line := stream.readline():
        number, num_bytes, form, task = line.decode().split()
        data = stream.read(int(num_bytes))
        stream.readline()
        yield int(number), data, form, task


def main() -> None:
    max_pixels, cpu_s = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # The gateway handles these signals, and needs this process until its requests have finished.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
    warnings.simplefilter("ignore")
    Pillow.MAX_IMAGE_PIXELS = max_pixels
    print("true", flush=True)
    for number, data, form, task in read_questions(sys.stdin.buffer):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        numbers, pixels = answer(data, form, task, max_pixels)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([number, numbers, len(pixels)]), flush=True)
        sys.stdout.buffer.write(pixels)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
