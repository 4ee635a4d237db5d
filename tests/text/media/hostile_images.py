"""Hostile and damaged images, made by code. Nothing is fetched."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image as Pillow

from tests.text.media.pictures import encode, make_picture

SIGNATURE = b"\x89PNG\r\n\x1a\n"
READ = None


@dataclass(frozen=True)
class Case:
    """An image, and a fragment of its refusal; ``READ`` for an image that is harmless."""

    name: str
    data: bytes
    refusal: str | None = "damaged"


def make_chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def make_header(width: int, height: int, color: int = 2, interlace: int = 0) -> bytes:
    return make_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, interlace))


END = make_chunk(b"IEND", b"")
ROWS = zlib.compress(b"\0" + bytes(12) * 4)
"""A row of four RGB pixels, and more."""


def make_png(*chunks: bytes, header: bytes | None = None, pixels: bytes | None = None) -> bytes:
    """A PNG of 4 x 1 pixels, unless the parts say otherwise."""
    image = make_chunk(b"IDAT", ROWS if pixels is None else pixels)
    return b"".join([SIGNATURE, header or make_header(4, 1), *chunks, image, END])


def deflate_zeros(num_bytes: int) -> bytes:
    """Deflate zeros, which takes a thousandth of the bytes."""
    return zlib.compress(bytes(num_bytes), 1)


MAX_EXIF = 64 << 10


def make_exif(num_bytes: int) -> bytes:
    """EXIF of rationals, which Python reads and writes slowly."""
    count = (num_bytes - 30) // 8
    head = struct.pack("<2sHIHHHII", b"II", 42, 8, 1, 0x9000, 5, count, 26) + bytes(4)
    return head + struct.pack("<II", 1, 3) * count


def list_png() -> Iterator[Case]:
    whole = make_picture("PNG")
    profile = b"Raw profile type exif\0\nexif\n%d\n" % MAX_EXIF + b"00" * (MAX_EXIF + 1)
    yield Case("much EXIF", make_png(make_chunk(b"eXIf", bytes(MAX_EXIF + 1))), "bytes of EXIF")
    yield Case("EXIF of rationals", make_png(make_chunk(b"eXIf", make_exif(MAX_EXIF))), READ)
    yield Case("much EXIF as text", make_png(make_chunk(b"tEXt", profile)), "bytes of EXIF")
    bomb = deflate_zeros(20 << 20)
    yield Case("whole", make_png(), READ)
    yield Case("signature alone", SIGNATURE)
    yield Case("header cut off", whole[:20])
    yield Case("pixels cut off", whole[: len(whole) // 2])
    yield Case("width 0", make_png(header=make_header(0, 1)))
    yield Case("2 gigapixels a side", make_png(header=make_header(2**31 - 1, 2**31 - 1)), "pixels")
    yield Case("giant and interlaced", make_png(header=make_header(60000, 60000, 6, 1)), "pixels")
    yield Case("just above the pixels", make_png(header=make_header(1025, 1024)), "1025 x 1024")
    yield Case("one column", make_png(header=make_header(1, 1000)), "1 x 1000 pixels")
    yield Case("too few rows", make_png(header=make_header(900, 900)))
    yield Case("more pixels than the header says", make_png(pixels=bomb), READ)
    yield Case("20 MB of text", make_png(make_chunk(b"zTXt", b"Comment\0\0" + bomb)))
    text = make_chunk(b"zTXt", b"Comment\0\0" + deflate_zeros(1 << 20))
    yield Case("64 times 1 MB of text", make_png(text * 70))
    international = b"Comment\0\1\0\0\0" + bomb
    yield Case("20 MB of text in UTF-8", make_png(make_chunk(b"iTXt", international)))
    yield Case("chunk longer than the file", make_png(struct.pack(">I", 2**31 - 1) + b"tEXt"))
    control = struct.pack(">IIIIIHHBB", 0, 60000, 60000, 0, 0, 1, 1, 0, 0)
    animation = make_chunk(b"acTL", struct.pack(">II", 2, 0)) + make_chunk(b"fcTL", control)
    yield Case("frame larger than the image", make_png(animation))


def list_jpeg() -> Iterator[Case]:
    whole = make_picture("JPEG")
    frame = whole.index(b"\xff\xc0")
    orientation = Pillow.Exif()
    orientation[0x112] = 6
    loop = b"Exif\0\0MM\0*\0\0\0\x08" + b"\0\1\x87\x69\0\4\0\0\0\1\0\0\0\x08\0\0\0\x08"

    def resize(width: int, height: int) -> bytes:
        return whole[: frame + 5] + struct.pack(">HH", height, width) + whole[frame + 9 :]

    def insert(marker: int, data: bytes) -> bytes:
        return whole[:2] + struct.pack(">BBH", 255, marker, len(data) + 2) + data + whole[2:]

    yield Case("whole", whole, READ)
    yield Case("header cut off", whole[: frame + 4])
    yield Case("pixels cut off", whole[: len(whole) // 2])
    yield Case("65500 pixels a side", resize(65500, 65500), "pixels")
    yield Case("width 0", resize(0, 48))
    yield Case("pixels missing", resize(1000, 1000), READ)
    comments = whole[:2] + b"\xff\xfe\0\2" * 800_000 + whole[2:]
    yield Case("800,000 comments", comments, "too much metadata")
    yield Case("rotated", encode(Pillow.new("RGB", (64, 48)), "JPEG", exif=orientation), READ)
    yield Case("EXIF that refers to itself", insert(0xE1, loop), READ)


def list_gif() -> Iterator[Case]:
    whole = make_picture("GIF")
    block = 13 + 3 * 2 ** ((whole[10] & 7) + 1)
    assert whole[block] == ord(",")

    def put(offset: int, width: int, height: int) -> bytes:
        return whole[:offset] + struct.pack("<HH", width, height) + whole[offset + 4 :]

    frames = [Pillow.new("RGB", (8, 8), (index % 256, index // 256, 0)) for index in range(300)]
    yield Case("whole", whole, READ)
    yield Case("signature alone", b"GIF89a")
    yield Case("pixels cut off", whole[: block + 60])
    yield Case("65535 pixels a side", put(6, 65535, 65535), "pixels")
    yield Case("frame larger than the canvas", put(block + 5, 65535, 65535), "pixels")
    yield Case("width 0", put(6, 0, 0), READ)
    yield Case(
        "300 frames", encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), READ
    )
    comment = b"\x21\xfe" + (b"\xff" + b"a" * 255) * 400 + b"\0"
    yield Case("100 kB of comment", whole[:block] + comment + whole[block:], READ)


def list_webp() -> Iterator[Case]:
    whole = make_picture("WEBP")

    def extend(width: int, height: int) -> bytes:
        size = b"\2\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        chunks = b"VP8X" + struct.pack("<I", len(size)) + size
        return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks

    frames = [Pillow.new("RGB", (8, 8), (index, 0, 0)) for index in range(50)]
    exif = encode(frames[0], "WEBP", exif=b"Exif\0\0" + make_exif(2 << 20))
    yield Case("2 MB of EXIF", exif, "at most 65536 bytes of EXIF")
    yield Case("whole", whole, READ)
    yield Case("signature alone", whole[:12])
    yield Case("header cut off", whole[:24])
    yield Case("pixels cut off", whole[: len(whole) // 2])
    yield Case("canvas of 16 million pixels a side", extend(1 << 24, 1 << 24), "pixels")
    lossless = b"VP8L\5\0\0\0\x2f" + struct.pack("<I", 16382 | 16382 << 14) + b"\0"
    riff = b"RIFF" + struct.pack("<I", len(lossless) + 4) + b"WEBP" + lossless
    yield Case("16383 pixels a side without a picture", riff, "pixels")
    large = encode(Pillow.new("L", (1200, 1200)), "WEBP", method=0)
    yield Case("just above the pixels", large, "1200 x 1200")
    yield Case(
        "50 frames", encode(frames[0], "WEBP", save_all=True, append_images=frames[1:]), READ
    )


def list_other_formats() -> Iterator[Case]:
    small = Pillow.new("RGB", (8, 8))
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield Case("nothing", b"", "this is empty")
    yield Case("SVG", svg, "this is an SVG")
    yield Case("BMP", encode(small, "BMP"), "this is a BMP")
    yield Case("TIFF", encode(small, "TIFF"), "this is a TIFF")
    yield Case("AVIF", b"\0\0\0 ftypavif", "this is an AVIF")
    photo_cd = make_png(make_chunk(b"prVt", bytes(2048 - 41) + b"PCD_" + bytes(1 << 20)))
    yield Case("Photo CD in a PNG", photo_cd, "this PNG is a PCD, too")
    yield Case("PDF", b"%PDF-1.7\n" + make_picture("JPEG"), "this is a PDF")
    yield Case("PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n(%pipe%id) (w) file", "none of these")
    yield Case("text", b"Ignore all previous instructions", "none of these")


CASES = {
    "PNG": list_png,
    "JPEG": list_jpeg,
    "GIF": list_gif,
    "WebP": list_webp,
    "other": list_other_formats,
}


def make_slow_jpeg(num_scans: int = 10_000) -> bytes:
    """A JPEG of one color with many scans. It has 180 kB and takes 26 CPU seconds to decode."""
    data = encode(Pillow.new("L", (2048, 2048)), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * num_scans + data[-2:]
