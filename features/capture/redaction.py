"""Redaction of requests before they are written: full records with redacted text, or hashes."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson

from eaglegate.features.capture.files import SLOW, RecordDropped
from eaglegate.features.capture.patterns import (
    Pattern,
    compile_pattern,
    contains_any,
    encode,
    find_spans,
)
from eaglegate.observability.captures.record import BLOCK, CapturedPrompt, CaptureRecord

REDACTED = "[redacted]"
LIMIT_S = 0.05
"""CPU time allowed for the redaction of one record, in seconds."""
SALT_FILE = "salt"
PROMPT_FIELDS = frozenset(
    {"messages", "tools", "functions", "prompt", "input", "system", "instructions"}
)
"""Fields that make up the prompt. They cannot be dropped: the prompt's token ids would still
contain their text.
"""
TOKEN_FIELDS = frozenset({"logit_bias", "allowed_token_ids", "stop_token_ids"})
"""Fields that contain single token ids, any of which may spell text that a pattern matches."""
NUMBER_FIELDS = frozenset(
    {
        "frequency_penalty", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens",
        "min_p", "min_tokens", "n", "num_speculative_tokens", "presence_penalty", "prompt_logprobs",
        "repetition_penalty", "seed", "temperature", "top_k", "top_logprobs", "top_p",
    }
)  # fmt: skip
"""Request settings whose numbers are kept, because a replay needs them."""
GAPS = ("", " ", "\n", "\n\n")
"""Separators that chat templates put between the parts of a message."""
ESCAPED_TIMES = 3
"""Levels of JSON strings nested in JSON strings that are searched."""
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED = dict(zip("bfnrt", "\b\f\n\r\t", strict=True))

Decode = Callable[[Sequence[int]], str]


@dataclass
class Redactor:
    """Replaces text that matches a pattern, and drops configured fields of the body.

    A record with a match keeps no token ids, because they spell the same text. No record keeps them
    while there is no decoder to check them with.
    """

    patterns: tuple[Pattern, ...] = ()
    dropped: frozenset[str] = frozenset()
    decode: Decode | None = None
    limit_s: float = LIMIT_S
    clock: Callable[[], float] = time.thread_time
    has_match: bool = field(default=False, init=False)
    """True if a pattern matched since ``begin``."""
    _ends: float = field(default=0.0, init=False)

    @classmethod
    def of(cls, patterns: Sequence[str], dropped_fields: Sequence[str]) -> Redactor:
        """Compile the patterns and check the field names. Raises ValueError."""
        for name in dropped_fields:
            if name in PROMPT_FIELDS:
                raise ValueError(
                    f"'{name}' is part of the prompt, which its token ids would still hold; "
                    "mode hashes keeps no text at all"
                )
        return cls(tuple(map(compile_pattern, patterns)), frozenset(dropped_fields))

    def begin(self) -> None:
        """Start a new record."""
        self.has_match = False
        self._ends = self.clock() + self.limit_s

    @property
    def keeps_ids(self) -> bool:
        """True if the record's token ids may be kept, judged by the parts read so far."""
        return not self.patterns or (self.decode is not None and not self.has_match)

    def redact_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``body`` without the dropped fields, with its texts and numbers redacted."""
        fields = {name: value for name, value in body.items() if name not in self.dropped}
        if not self.patterns:
            return fields
        settings = {
            name: fields.pop(name)
            for name in NUMBER_FIELDS & fields.keys()
            if isinstance(fields[name], (int, float))
        }
        prompt = {"prompt": fields.pop("prompt")} if holds_ids(fields.get("prompt")) else {}
        self._read_prompts(prompt.get("prompt", ()))
        for name in TOKEN_FIELDS:
            fields.pop(name, None)
        return {**self.redact(fields), **prompt, **settings}

    def redact(self, value: Any) -> Any:
        """Return ``value`` with every text and number in it redacted, including keys."""
        if not self.patterns or value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._redact_text(value)
        if isinstance(value, (int, float)):
            return self._redact_number(value)
        if isinstance(value, Mapping):
            return {self._redact_text(key): self.redact(item) for key, item in value.items()}
        return type(value)(self._redact_split([self.redact(item) for item in value]))

    def _redact_text(self, text: str) -> str:
        text = self._replace(self._redact_json(text))
        unescaped_text = unescape(text)
        if unescaped_text != text and find_spans(
            self.patterns, encode(unescaped_text), self._check
        ):
            self.has_match = True
            return REDACTED
        return text

    def _replace(self, text: str) -> str:
        data = encode(text)
        spans = find_spans(self.patterns, data, self._check)
        if not spans:
            return text
        self.has_match = True
        starts, ends = zip(*spans, strict=True)
        gaps = zip((0, *ends), (*starts, len(data)), strict=True)
        redaction = encode(REDACTED).join(data[start:end] for start, end in gaps)
        return redaction.decode("utf-8", "surrogatepass")

    def _redact_json(self, text: str) -> str:
        """Redact the values inside a text that is itself JSON, such as the arguments of a tool
        call.
        """
        if not text.lstrip().startswith(("{", "[", '"')):
            return text
        try:
            value = orjson.loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return text
        redaction = self.redact(value)
        return text if redaction == value else orjson.dumps(redaction).decode()

    def _redact_number(self, value: float) -> float | str:
        """Redact a number. Integers above 64 bits arrive as floats, which preserve only the leading
        digits; they are always redacted.
        """
        forms = {str(value)}
        if isinstance(value, float) and value.is_integer():
            forms.add(str(int(value)))
        has_match = any(find_spans(self.patterns, encode(form), self._check) for form in forms)
        if not has_match and abs(value) < 2**64:
            return value
        self.has_match = True
        return REDACTED

    def _redact_split(self, items: list[Any]) -> list[Any]:
        """Redact text parts that match only when joined: the model reads them as one text."""
        parts = [item for item in items if is_text_part(item)]
        if len(parts) < 2:
            return items
        texts = [encode(part["text"]) for part in parts]
        spelling: set[int] = set()
        for gap in map(encode, GAPS):
            starts = [0, *accumulate(len(text) + len(gap) for text in texts)]
            for start, end in find_spans(self.patterns, gap.join(texts), self._check):
                touched_parts = [
                    index
                    for index, text in enumerate(texts)
                    if start < starts[index] + len(text) and end > starts[index]
                ]
                spelling.update(touched_parts if len(touched_parts) > 1 else ())
        self.has_match |= bool(spelling)
        hidden_ids = {id(parts[index]) for index in spelling}
        return [{**item, "text": REDACTED} if id(item) in hidden_ids else item for item in items]

    def read(self, token_ids: Sequence[int]) -> None:
        """Search the text of these token ids for the patterns, at any position."""
        if not self.keeps_ids or self.decode is None or not self.patterns:
            return
        start = self.clock()
        text = self.decode(token_ids)
        self._ends += self.clock() - start
        forms = {text, unescape(text)}
        self.has_match = any(
            contains_any(self.patterns, encode(form), self._check) for form in forms
        )

    def _read_prompts(self, prompt: Sequence[Any]) -> None:
        if prompt and isinstance(prompt[0], int):
            self.read(prompt)
            return
        for item in prompt:
            if isinstance(item, list):
                self._read_prompts(item)
            else:
                self.redact(item)

    def strip_ids(self, record: CaptureRecord) -> CaptureRecord:
        """Return ``record`` without the token ids that it may not keep. Call it after everything
        was read.
        """
        record = replace(record, redacted=self.has_match)
        if self.patterns:
            sampling = {k: v for k, v in record.sampling.items() if k not in TOKEN_FIELDS}
            record = replace(record, sampling=sampling)
        if self.keeps_ids:
            return record
        body = record.body
        if body is not None and holds_ids(body.get("prompt")):
            body = {**body, "prompt": REDACTED}
        return replace(
            record,
            body=body,
            prompts=tuple(replace(prompt, token_ids=None) for prompt in record.prompts),
            choices=tuple(replace(choice, token_ids=None) for choice in record.choices),
        )

    def _check(self) -> None:
        """Raise RecordDropped if the time limit is exceeded."""
        if self.clock() > self._ends:
            raise RecordDropped(SLOW, f"its redaction takes more than {1000 * self.limit_s:.0f} ms")


def holds_ids(prompt: Any) -> bool:
    """Return True if the prompt is a list of token ids, or a list with at least one such prompt."""
    if not isinstance(prompt, list):
        return False
    return any(isinstance(item, int) or holds_ids(item) for item in prompt)


def is_text_part(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("text"), str)


def unescape(text: str) -> str:
    """Replace JSON escapes in a text, such as arguments quoted inside a longer text."""

    def spell(match: re.Match[str]) -> str:
        code, character = match.groups()
        return chr(int(code, 16)) if code else _ESCAPED.get(character, character)

    for _ in range(ESCAPED_TIMES):
        if "\\" not in text:
            break
        halves = _ESCAPE.sub(spell, text).encode("utf-16-le", "surrogatepass")
        text = halves.decode("utf-16-le", "surrogatepass")
    return text


class SaltedHashes:
    """Salted hashes. They show which values are equal and, without the salt, nothing else."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def hash_text(self, text: str) -> str:
        digest = hashlib.blake2b(text.encode(), key=self._salt, digest_size=8)
        return digest.hexdigest()

    def hash_prompt(self, token_ids: Sequence[int]) -> CapturedPrompt:
        """Hash the prompt at the end of each block.

        Each hash covers the prompt from its start, so equal hashes mean equal prefixes. Hashes have
        48 bits, which every JSON reader represents exactly.
        """
        state = hashlib.blake2b(key=self._salt, digest_size=6)
        blocks = []
        for start in range(0, len(token_ids), BLOCK):
            state.update(orjson.dumps(list(token_ids[start : start + BLOCK])))
            blocks.append(int.from_bytes(state.copy().digest(), "big"))
        return CapturedPrompt(len(token_ids), blocks=tuple(blocks))


def load_salt(directory: Path) -> bytes:
    """Return the salt of a capture folder, created on first use. Without it, hashes cannot be
    guessed.

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
        raise OSError(f"{path} must have 32 bytes; it has {len(salt)}: delete it")
    return salt
