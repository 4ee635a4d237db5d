"""Files of capture records: plain, gzipped or encrypted, and cut at any byte.

Each record is one line, so that a file is readable to its last whole record whatever became of the
rest. With a key, a line is the Fernet token (AES-128-CBC with HMAC-SHA256) of the record.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from observability.capture.record import (
    CaptureError,
    CaptureRecord,
    DamagedRecord,
    format_record,
    parse_record,
)

SUFFIXES = (".jsonl", ".jsonl.gz")
KEY_FILE_VARIABLE = "EAGLEGATE_CAPTURE_KEY_FILE"
_TOKEN = b"gAAAA"
"""How every Fernet token begins."""
_GZIP = b"\x1f\x8b"


def make_cipher(keys: Sequence[str]) -> MultiFernet | None:
    """The first key encrypts, all decrypt; None without keys. Raises ValueError for a wrong one."""
    return MultiFernet([Fernet(key) for key in keys]) if keys else None


def read_keys(path: Path) -> list[str]:
    """Fernet keys, one per line. Raises OSError."""
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
    """Of the keys in that file. Raises OSError, and ValueError for a wrong key."""
    return make_cipher(read_keys(key_file)) if key_file else None


def write_records(
    path: Path, records: Iterable[CaptureRecord], cipher: MultiFernet | None = None
) -> int:
    """A new file of these records; how many there are."""
    count = 0
    with path.open("wb") as file:
        for record in records:
            line = format_record(record)
            file.write((cipher.encrypt(line) if cipher else line) + b"\n")
            count += 1
    return count


Skip = Callable[[str], None]


def _ignore(_: str) -> None:
    pass


def read_records(
    path: Path, cipher: MultiFernet | None = None, skip: Skip = _ignore
) -> Iterator[CaptureRecord]:
    """The records of a file, or of all files of a capture folder, in the order of their names.

    ``skip`` is called with a sentence for each line that is damaged or cut. Raises CaptureError for
    a file that is not there, holds no readable record at all, or is encrypted and no key was given.
    """
    for file in list_files(path):
        whole = 0
        for number, line in enumerate(read_lines(file), 1):
            try:
                record = parse_record(decrypt_line(line, cipher, file))
            except DamagedRecord as error:
                skip(f"{file.name}:{number}: {error}")
                continue
            whole += 1
            yield record
        if not whole and path == file:
            raise CaptureError(f"{file} holds no capture record")


def list_files(path: Path) -> list[Path]:
    """Raises CaptureError."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    if not path.is_file():
        raise CaptureError(f"{path} is neither a capture file nor a folder of them")
    return [path]


def read_lines(path: Path) -> Iterator[bytes]:
    """Lines that are not empty; the last may be cut."""
    rest = b""
    for chunk in _read_chunks(path):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        first = file.read(1 << 20)
        inflate = zlib.decompressobj(wbits=31) if first.startswith(_GZIP) else None
        while first:
            if inflate is None:
                yield first
            else:
                try:
                    yield inflate.decompress(first)
                except zlib.error:
                    return
            first = file.read(1 << 20)


def decrypt_line(line: bytes, cipher: MultiFernet | None, file: Path) -> bytes:
    """Raises DamagedRecord, or CaptureError without a key."""
    if not line.startswith(_TOKEN):
        return line
    if cipher is None:
        raise CaptureError(f"{file} is encrypted: give its key with --key-file")
    try:
        return cipher.decrypt(line)
    except InvalidToken:
        raise DamagedRecord("damaged, or encrypted with another key") from None
