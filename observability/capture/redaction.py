"""What of a request may reach the disk: everything, redacted text, or hashes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from observability.capture.record import BLOCK, CapturedPrompt

REDACTED = "[redacted]"
SALT_FILE = "salt"
PROMPT_FIELDS = frozenset(
    {"messages", "tools", "functions", "prompt", "input", "system", "instructions"}
)
"""Fields that the prompt is made of: its token ids would still say what these said."""

Decode = Callable[[Sequence[int]], str]


@dataclass
class Redactor:
    """Replaces what matches a pattern, and leaves fields of the body out.

    Token ids spell the same text. With patterns they are kept only where the text they decode to
    matches none of them, and not at all while there is nothing to decode them with.
    """

    patterns: tuple[re.Pattern[str], ...] = ()
    dropped: frozenset[str] = frozenset()
    decode: Decode | None = None
    found: bool = field(default=False, init=False)
    """Something was replaced since ``begin``."""

    @classmethod
    def of(cls, patterns: Sequence[str], dropped: Sequence[str]) -> Redactor:
        """Raises ValueError."""
        for name in dropped:
            if name in PROMPT_FIELDS:
                raise ValueError(
                    f"'{name}' is part of the prompt, which its token ids would still hold; "
                    "mode hashes keeps no text at all"
                )
        compiled = []
        for pattern in patterns:
            try:
                compiled.append(re.compile(pattern))
            except re.error as error:
                raise ValueError(f"'{pattern}' is not a regular expression: {error}") from None
        return cls(tuple(compiled), frozenset(dropped))

    def begin(self) -> None:
        """A new request."""
        self.found = False

    def drop_fields(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name not in self.dropped}

    def redact(self, value: Any) -> Any:
        """``value`` with every text in it redacted, keys included."""
        if not self.patterns:
            return value
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, Mapping):
            return {self._redact_text(key): self.redact(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.redact(item) for item in value)
        return value

    def _redact_text(self, text: str) -> str:
        for pattern in self.patterns:
            text, count = pattern.subn(REDACTED, text)
            self.found |= count > 0
        return text

    def allows(self, token_ids: Sequence[int]) -> bool:
        """Whether these ids may be kept."""
        if not self.patterns:
            return True
        if self.decode is None:
            return False
        text = self.decode(token_ids)
        found = any(pattern.search(text) for pattern in self.patterns)
        self.found |= found
        return not found


class SaltedHashes:
    """Hashes that say which things are the same, and nothing else without the salt."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def hash_text(self, text: str) -> str:
        digest = hashlib.blake2b(text.encode(), key=self._salt, digest_size=8)
        return digest.hexdigest()

    def hash_prompt(self, token_ids: Sequence[int]) -> CapturedPrompt:
        """Each hash is of the prompt from its start to the end of the block, so that equal hashes
        mean equal prefixes; 48 bits, which every JSON reader keeps exact."""
        state = hashlib.blake2b(key=self._salt, digest_size=6)
        blocks = []
        for at in range(0, len(token_ids), BLOCK):
            state.update(orjson.dumps(list(token_ids[at : at + BLOCK])))
            blocks.append(int.from_bytes(state.copy().digest(), "big"))
        return CapturedPrompt(len(token_ids), blocks=tuple(blocks))


def load_salt(directory: Path) -> bytes:
    """The salt of a capture folder, made on first use; without it, hashes cannot be guessed.

    Raises OSError.
    """
    path = directory / SALT_FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
    except FileExistsError:
        pass
    salt = path.read_bytes()
    if len(salt) != 32:
        raise OSError(f"{path} must hold 32 bytes; it holds {len(salt)}: delete it")
    return salt
