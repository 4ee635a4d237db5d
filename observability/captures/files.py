"""Capture files, read back and written at once.

A record is one line, so a truncated file is readable up to its last complete record. With a key, a
line is the record's Fernet token (AES-128-CBC with HMAC-SHA256). Files may be gzipped.
"""

from __future__ import annotations

import argparse
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from eaglegate.observability.captures.record import (
    CaptureError,
    CaptureRecord,
    DamagedRecord,
    format_record,
    parse_record,
)

SUFFIXES = (".jsonl", ".jsonl.gz")
RECORDS, AUDITS = "capture", "audits"
"""File name prefixes, by content."""
KEY_FILE_VARIABLE = "EAGLEGATE_CAPTURE_KEY_FILE"
_TOKEN = b"gAAAA"
"""The first bytes of every Fernet token."""
_GZIP = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20


def make_cipher(keys: Sequence[str]) -> MultiFernet | None:
    """Make a cipher: the first key encrypts, all keys decrypt. Return None without keys.

    Raises ValueError for an invalid key.
    """
    return MultiFernet([Fernet(key) for key in keys]) if keys else None


def read_keys(path: Path) -> list[str]:
    """Read Fernet keys, one per line. Raises OSError."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def add_key_file_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--key-file",
        type=Path,
        default=os.environ.get(KEY_FILE_VARIABLE),
        metavar="FILE",
        help=f"Fernet keys of an encrypted capture [{KEY_FILE_VARIABLE}]",
    )


def load_cipher(key_file: Path | None) -> MultiFernet | None:
    """Make a cipher from the keys in a file. Raises OSError, and ValueError for an invalid key."""
    return make_cipher(read_keys(key_file)) if key_file else None


def write_records(
    path: Path,
    records: Iterable[CaptureRecord],
    cipher: MultiFernet | None = None,
    compress: bool = False,
) -> int:
    """Write a new file of records, and return their number."""
    return write_lines(path, map(format_record, records), cipher, compress)


def write_lines(
    path: Path, lines: Iterable[bytes], cipher: MultiFernet | None, compress: bool
) -> int:
    """Write a new file of lines, encrypted with ``cipher``, and return their number."""
    count = 0
    with gzip.open(path, "wb") if compress else path.open("wb") as file:
        for line in lines:
            file.write((cipher.encrypt(line) if cipher else line) + b"\n")
            count += 1
    return count


Skip = Callable[[str], None]
Line = TypeVar("Line")


def _ignore(_: str) -> None:
    pass


def read_records(
    path: Path, cipher: MultiFernet | None = None, skip: Skip = _ignore
) -> Iterator[CaptureRecord]:
    """Read the records of a file, or of all files of a capture folder in order of their names.

    ``skip`` is called with a sentence for each damaged or truncated line. Raises CaptureError for a
    file that does not exist, contains no readable record, or is encrypted when no key was given.
    """
    for file in list_files(path):
        num_records = 0
        for record in parse_lines(file, cipher, skip, parse_record):
            num_records += 1
            yield record
        if not num_records and path == file:
            raise CaptureError(f"{file} holds no capture record")


def parse_lines(
    file: Path, cipher: MultiFernet | None, skip: Skip, parse: Callable[[bytes], Line]
) -> Iterator[Line]:
    """Yield the parsed lines of a file, skipping those for which ``parse`` raises DamagedRecord."""
    for number, line in enumerate(read_lines(file, skip), 1):
        try:
            yield parse(decrypt_line(line, cipher, file))
        except DamagedRecord as error:
            skip(f"{file.name}:{number}: {error}")


def list_files(path: Path, content: str = RECORDS) -> list[Path]:
    """Return the file ``path``, or the files of a folder: the audits, or all others.

    Raises CaptureError if ``path`` does not exist.
    """
    if path.is_dir():
        files = [file for file in path.iterdir() if file.name.endswith(SUFFIXES)]
        return sorted(
            file for file in files if file.name.startswith(f"{AUDITS}-") == (content == AUDITS)
        )
    if not path.is_file():
        raise CaptureError(f"{path} is neither a capture file nor a folder of them")
    return [path]


def read_lines(path: Path, skip: Skip = _ignore) -> Iterator[bytes]:
    """Yield the lines that are not empty. The last one may be truncated."""
    remainder = b""
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(CHUNK_BYTES), b"")
        if is_gzipped(path):
            chunks = _inflate(chunks, lambda problem: skip(f"{path.name}: {problem}"))
        for chunk in chunks:
            *lines, remainder = (remainder + chunk).split(b"\n")
            yield from (line for line in lines if line.strip())
    if remainder.strip():
        yield remainder


def is_gzipped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


def _inflate(chunks: Iterable[bytes], skip: Skip) -> Iterator[bytes]:
    """Decompress all gzip members in turn: compressed files may have been concatenated."""
    member = None
    for chunk in chunks:
        remainder = chunk
        while remainder := remainder if member else remainder.lstrip(b"\0"):
            member = member or zlib.decompressobj(wbits=31)
            try:
                yield member.decompress(remainder)
            except zlib.error:
                skip("its gzip data is damaged: the rest cannot be read")
                return
            remainder, member = member.unused_data, None if member.eof else member
    if member:
        skip("its gzip data is truncated: the rest cannot be read")


def decrypt_line(line: bytes, cipher: MultiFernet | None, file: Path) -> bytes:
    """Decrypt a line if it is encrypted. Raises DamagedRecord, or CaptureError without a key."""
    if not line.startswith(_TOKEN):
        return line
    if cipher is None:
        raise CaptureError(f"{file} is encrypted: give its key with --key-file")
    try:
        return cipher.decrypt(line)
    except InvalidToken:
        raise DamagedRecord("damaged, or encrypted with another key") from None
