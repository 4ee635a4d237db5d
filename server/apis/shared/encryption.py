"""Encrypted reasoning, stored by the client and readable only by this gateway.

A token is a Fernet token (AES-128-CBC with HMAC-SHA256), so changes are detected. It contains the
owner (``ApiKey.owner``), so one tenant cannot use another's token. The first key encrypts; all keys
decrypt.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import orjson
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from eaglegate.server.errors import ConfigError

KEY_FILE = "encryption.key"


class CannotDecrypt(ValueError):
    """A token cannot be decrypted. The message gives the reason, without the content."""


class ReasoningCipher:
    """Encrypts and decrypts the reasoning of owners."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Create the cipher. Raises ValueError for an invalid Fernet key."""
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    @classmethod
    def ephemeral(cls) -> ReasoningCipher:
        """Make a cipher with a key that exists only in this process."""
        return cls([Fernet.generate_key().decode()])

    def writer(self, owner: str) -> Callable[[str], str]:
        return lambda text: self.encrypt(text, owner)

    def reader(self, owner: str) -> Callable[[str], str]:
        """Return a function that decrypts the owner's tokens. It raises CannotDecrypt."""
        return lambda token: self.decrypt(token, owner)

    def encrypt(self, text: str, owner: str) -> str:
        return self._fernet.encrypt(orjson.dumps([owner, text])).decode()

    def decrypt(self, token: str, owner: str) -> str:
        """Decrypt a token. Raises CannotDecrypt."""
        try:
            maker, text = orjson.loads(self._fernet.decrypt(token))
        except (InvalidToken, ValueError):
            raise CannotDecrypt("it was modified, or created with other encryption keys") from None
        if maker != owner:
            raise CannotDecrypt("it belongs to another API key")
        return str(text)


def read_configured_keys(flag_values: Iterable[str], path: str | None) -> list[str]:
    """Return the ``flag_values``, then those of the file. Raises ConfigError without showing a
    key.
    """
    keys = list(flag_values)
    for number, key in enumerate(keys, 1):
        _check(key, f"--encryption-key: key {number}")
    if path is not None:
        keys += read_keys(Path(path))
    return keys


def read_keys(path: Path) -> list[str]:
    """Read keys, one per line. Raises ConfigError without showing a key."""
    source = f"the encryption keys in {path}"
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe may have no end
            raise OSError("it is not a regular file")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{source}: the file contains no key")
    for number, key in enumerate(keys, 1):
        _check(key, f"{source}: key {number}")
    return keys


def load_or_make_keys(directory: Path) -> list[str]:
    """Return the keys in ``directory``. The first call creates one, readable only by this user.

    Raises ConfigError for a file without keys, and OSError if none can be written.
    """
    path = directory / KEY_FILE
    if not path.exists():
        _make(path)
    return read_keys(path)


def _make(path: Path) -> None:
    """Create the key file atomically: if two processes start at once, both use the first one's
    key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(
        os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
    ) as file:
        file.write(Fernet.generate_key() + b"\n")
    try:
        path.hardlink_to(temporary_path)
    except FileExistsError:
        pass
    finally:
        temporary_path.unlink()


def _check(key: str, source: str) -> None:
    try:
        Fernet(key)
    except ValueError:
        raise ConfigError(
            f"{source} is not a Fernet key: expected 32 random bytes in URL-safe base64, "
            "for example from `openssl rand -base64 32 | tr '+/' '-_'`"
        ) from None
