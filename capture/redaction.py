"""Redaction of requests before they reach the disk: everything, redacted text, or hashes."""

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

from eaglegate.capture.files import SLOW, RecordDropped
from eaglegate.capture.patterns import (
    Pattern,
    compile_pattern,
    contains_any,
    encode,
    find_spans,
)
from eaglegate.capture.record import BLOCK, CapturedPrompt, CaptureRecord

REDACTED = "[redacted]"
LIMIT_S = 0.05
"""Processor time that the redaction of one record may take."""
SALT_FILE = "salt"
PROMPT_FIELDS = frozenset(
    {"messages", "tools", "functions", "prompt", "input", "system", "instructions"}
)
"""Fields that the prompt is made of: its token ids would still say what these said."""
TOKEN_FIELDS = frozenset({"logit_bias", "allowed_token_ids", "stop_token_ids"})
"""Fields of single token ids: one of them may spell what a pattern matches."""
NUMBER_FIELDS = frozenset(
    {
        "frequency_penalty", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens",
        "min_p", "min_tokens", "n", "num_speculative_tokens", "presence_penalty", "prompt_logprobs",
        "repetition_penalty", "seed", "temperature", "top_k", "top_logprobs", "top_p",
    }
)  # fmt: skip
"""Settings of a request: their numbers are kept, for a replay needs them."""
GAPS = ("", " ", "\n", "\n\n")
"""Separators that chat templates put between the parts of a content."""
ESCAPED_TIMES = 3
"""Levels of JSON within strings of JSON that are looked through."""
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_ESCAPED = dict(zip("bfnrt", "\b\f\n\r\t", strict=True))

Decode = Callable[[Sequence[int]], str]


@dataclass
class Redactor:
    """Replaces what matches a pattern, and leaves fields of the body out.

    A record in which anything was found keeps no token ids: they spell the same text. While there
    is nothing to decode ids with, none are kept.
    """

    patterns: tuple[Pattern, ...] = ()
    dropped: frozenset[str] = frozenset()
    decode: Decode | None = None
    limit_s: float = LIMIT_S
    clock: Callable[[], float] = time.thread_time
    found: bool = field(default=False, init=False)
    """Something was found since ``begin``."""
    _ends: float = field(default=0.0, init=False)

    @classmethod
    def of(cls, patterns: Sequence[str], dropped: Sequence[str]) -> Redactor:
        """Raises ValueError."""
        for name in dropped:
            if name in PROMPT_FIELDS:
                raise ValueError(
                    f"'{name}' is part of the prompt, which its token ids would still hold; "
                    "mode hashes keeps no text at all"
                )
        return cls(tuple(map(compile_pattern, patterns)), frozenset(dropped))

    def begin(self) -> None:
        """A new request."""
        self.found = False
        self._ends = self.clock() + self.limit_s

    @property
    def keeps_ids(self) -> bool:
        """Whether the token ids of this record may be kept, as far as it has been read."""
        return not self.patterns or (self.decode is not None and not self.found)

    def redact_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """``body`` without the fields that are dropped, its texts and numbers redacted."""
        kept = {name: value for name, value in body.items() if name not in self.dropped}
        if not self.patterns:
            return kept
        settings = {
            name: kept.pop(name)
            for name in NUMBER_FIELDS & kept.keys()
            if isinstance(kept[name], (int, float))
        }
        prompt = {"prompt": kept.pop("prompt")} if holds_ids(kept.get("prompt")) else {}
        self._read_prompts(prompt.get("prompt", ()))
        for name in TOKEN_FIELDS:
            kept.pop(name, None)
        return {**self.redact(kept), **prompt, **settings}

    def redact(self, value: Any) -> Any:
        """``value`` with every text and number in it redacted, keys included."""
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
        plain = unescape(text)
        if plain != text and find_spans(self.patterns, encode(plain), self._check):
            self.found = True
            return REDACTED
        return text

    def _replace(self, text: str) -> str:
        data = encode(text)
        spans = find_spans(self.patterns, data, self._check)
        if not spans:
            return text
        self.found = True
        starts, ends = zip(*spans, strict=True)
        kept = zip((0, *ends), (*starts, len(data)), strict=True)
        redacted = encode(REDACTED).join(data[start:end] for start, end in kept)
        return redacted.decode("utf-8", "surrogatepass")

    def _redact_json(self, text: str) -> str:
        """A text that is JSON, as arguments of tool calls are: what is in it is redacted."""
        if not text.lstrip().startswith(("{", "[", '"')):
            return text
        try:
            value = orjson.loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return text
        redacted = self.redact(value)
        return text if redacted == value else orjson.dumps(redacted).decode()

    def _redact_number(self, value: float) -> float | str:
        """Whole numbers of more than 64 bits are read as floats, which hold their first digits."""
        forms = {str(value)}
        if isinstance(value, float) and value.is_integer():
            forms.add(str(int(value)))
        found = any(find_spans(self.patterns, encode(form), self._check) for form in forms)
        if not found and abs(value) < 2**64:
            return value
        self.found = True
        return REDACTED

    def _redact_split(self, items: list[Any]) -> list[Any]:
        """Parts of a content are one text to the model: what they spell together."""
        parts = [item for item in items if is_text_part(item)]
        if len(parts) < 2:
            return items
        texts = [encode(part["text"]) for part in parts]
        spelling: set[int] = set()
        for gap in map(encode, GAPS):
            starts = [0, *accumulate(len(text) + len(gap) for text in texts)]
            for start, end in find_spans(self.patterns, gap.join(texts), self._check):
                touched = [
                    at
                    for at, text in enumerate(texts)
                    if start < starts[at] + len(text) and end > starts[at]
                ]
                spelling.update(touched if len(touched) > 1 else ())
        self.found |= bool(spelling)
        hidden = {id(parts[at]) for at in spelling}
        return [{**item, "text": REDACTED} if id(item) in hidden else item for item in items]

    def read(self, token_ids: Sequence[int]) -> None:
        """Look for patterns in the text of these ids, wherever in it they stand."""
        if not self.keeps_ids or self.decode is None or not self.patterns:
            return
        began = self.clock()
        text = self.decode(token_ids)
        self._ends += self.clock() - began
        forms = {text, unescape(text)}
        self.found = any(contains_any(self.patterns, encode(form), self._check) for form in forms)

    def _read_prompts(self, prompt: Sequence[Any]) -> None:
        if prompt and isinstance(prompt[0], int):
            self.read(prompt)
            return
        for one in prompt:
            if isinstance(one, list):
                self._read_prompts(one)
            else:
                self.redact(one)

    def strip_ids(self, record: CaptureRecord) -> CaptureRecord:
        """``record`` without what this one may not keep, once all of it has been read."""
        record = replace(record, redacted=self.found)
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
        """Raises RecordDropped."""
        if self.clock() > self._ends:
            raise RecordDropped(SLOW, f"its redaction takes more than {1000 * self.limit_s:.0f} ms")


def holds_ids(prompt: Any) -> bool:
    """Whether a body's prompt is token ids, or several prompts of which one is."""
    if not isinstance(prompt, list):
        return False
    return any(isinstance(one, int) or holds_ids(one) for one in prompt)


def is_text_part(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("text"), str)


def unescape(text: str) -> str:
    """Replace JSON's escapes in a text, as in arguments that are part of a longer text."""

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
