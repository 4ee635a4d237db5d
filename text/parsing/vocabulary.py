"""Vocabulary of a tokenizer: the bytes of ordinary tokens, the text of added ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from encodings.utf_8 import IncrementalDecoder
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from eaglegate.text.parsing.markers import FRAGMENT, Lexicon

_SUFFIXED = re.compile(r"<(?:think|tool_calls?|arg_key|arg_value)(:[^\s>]+)>")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """Added token, never the product of merges. A ``special`` token is not text."""

    id: int
    text: str
    special: bool


class _Pieces(dict[int, bytes]):
    """Bytes by token id, looked up on first use: building all 160,000 would delay the start."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        super().__init__()
        self._piece = piece

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = piece = self._piece(token_id)
        return piece


class _Texts(dict[int, str | None]):
    """Texts by token id; None for a token that begins or ends inside a character."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._pieces[token_id].decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


class Vocabulary:
    """Vocabulary of a tokenizer, made once and shared by all parsers. It is immutable.

    ``pieces`` maps a token id to its bytes. ``added`` has the special and added tokens by id,
    ``ids`` their ids by text. ``skip_space`` says that decoding drops one leading space.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        added_tokens: Iterable[AddedToken],
        *,
        encode: Callable[[str], list[int]],
        size: int,
        skip_space: bool = False,
    ) -> None:
        self.added: Mapping[int, AddedToken] = {token.id: token for token in added_tokens}
        self.ids: Mapping[str, int] = {token.text: token.id for token in self.added.values()}
        self.pieces = _Pieces(piece)
        self.pieces.update({token.id: token.text.encode() for token in self.added.values()})
        self._texts = _Texts(self.pieces)
        self.encode = encode
        self.size = max([size, *(token_id + 1 for token_id in self.added)])
        """Smallest id after all tokens."""
        self.lexicon = Lexicon(self.ids)
        self.spelled = Lexicon(self.ids, may_spell=True)
        self._skip_space = skip_space
        self._structures: dict[Hashable, Mapping[int, str | None]] = {}

    @classmethod
    def from_tokenizers(cls, tokenizer: Tokenizer, ends: tuple[str, ...] = ()) -> Vocabulary:
        """Make the vocabulary of a Hugging Face ``tokenizers.Tokenizer``.

        ``ends`` are special tokens even if the tokenizer does not know it.
        """
        added_tokens = [
            AddedToken(token_id, token.content, token.special or token.content in ends)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        ]
        unknown_ends = set(ends) - {token.text for token in added_tokens}
        ids = {text: tokenizer.token_to_id(text) for text in unknown_ends}
        added_tokens += [
            AddedToken(id_, text, True) for text, id_ in ids.items() if id_ is not None
        ]
        kind = _decoder_kind(tokenizer)
        return cls(
            _PIECES[kind](tokenizer),
            added_tokens,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
            size=tokenizer.get_vocab_size(),
            skip_space=kind == "metaspace",
        )

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> Vocabulary:
        """Make the vocabulary of a tokenizer loaded by ``transformers`` or ``mistral_common``."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if isinstance(backend, Tokenizer):
            return cls.from_tokenizers(backend)
        return cls(
            _slow_piece(tokenizer),
            _slow_added(tokenizer),
            encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            size=len(tokenizer),
        )

    @classmethod
    def from_directory(cls, path: Path) -> Vocabulary:
        """Make the vocabulary of a model folder, from ``tokenizer.json`` or by transformers."""
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.is_file():
            return cls.from_tokenizers(Tokenizer.from_file(str(file)), _ends(file.parent))
        if not path.is_dir():
            raise FileNotFoundError(f"no tokenizer at {path}: give a folder with tokenizer.json")
        from transformers import AutoTokenizer

        return cls.from_transformers(AutoTokenizer.from_pretrained(str(path)))

    @cached_property
    def suffix(self) -> str:
        """Suffix that the checkpoint adds to its markers: ``:6124c78e`` in ``<think:6124c78e>``."""
        matches = filter(None, map(_SUFFIXED.fullmatch, self.ids))
        return next((match[1] for match in matches), "")

    def structure(
        self,
        markers: tuple[str, ...],
        fragment: str,
        skip_special: bool,
        texts: tuple[str, ...] = (),
    ) -> Mapping[int, str | None]:
        """Return the ids that are not text: markers with their text, other special tokens with
        None.

        If ``skip_special`` is false, other special tokens are text. Tokens in ``texts`` always are.
        The id of ``fragment`` stands for FRAGMENT.
        """
        key = markers, fragment, skip_special, texts
        if key not in self._structures:
            self._structures[key] = {
                token.id: token.text if token.text in markers else None
                for token in self.added.values()
                if token.text in markers
                or (skip_special and token.special and token.text not in texts)
            } | {self.ids[text]: FRAGMENT for text in (fragment,) if text in self.ids}
        return self._structures[key]

    def decoder(self) -> Decoder:
        return Decoder(self.pieces, self._texts, self._skip_space)


class Decoder:
    """Incremental decoder of token ids to text. Characters split across tokens come out whole.

    The text equals ``tokenizer.decode(ids, skip_special_tokens=False)`` of the same ids, except
    that an unfinished character at the very end is dropped: it was not written.
    """

    def __init__(
        self,
        pieces: Mapping[int, bytes],
        texts: Mapping[int, str | None],
        skip_space: bool = False,
    ) -> None:
        self._pieces = pieces
        self._find_text: Callable[[int], Any] = texts.__getitem__
        self._utf8: IncrementalDecoder | None = None
        """Byte decoder, made for the first token that has no text of its own."""
        self._skip_space = skip_space

    def text(self, token_ids: Sequence[int]) -> str:
        if (self._utf8 is None or not self._utf8.buffer) and not self._skip_space:
            try:
                return "".join(map(self._find_text, token_ids))
            except TypeError:  # a token has no text of its own
                pass
        pieces = self._pieces
        data = b"".join([pieces[token_id] for token_id in token_ids])
        if self._skip_space and data:
            self._skip_space = False
            data = data.removeprefix(b" ")
        if self._utf8 is None:
            self._utf8 = IncrementalDecoder("replace")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """Return the replacement for an unfinished character that a non-text token follows."""
        if self._utf8 is None or not self._utf8.buffer:
            return ""
        return self._utf8.decode(b"", final=True)


def _ends(folder: Path) -> tuple[str, ...]:
    """Return the end-of-sequence token that a folder's tokenizer_config.json names."""
    file = folder / "tokenizer_config.json"
    token = (
        json.loads(file.read_text(encoding="utf-8")).get("eos_token") if file.is_file() else None
    )
    text = token.get("content") if isinstance(token, dict) else token
    return (text,) if isinstance(text, str) and text else ()


class _Backend(Protocol):
    def __call__(self, tokenizer: Tokenizer) -> Callable[[int], bytes]: ...


def _decoder_kind(tokenizer: Tokenizer) -> str:
    decoder = tokenizer.decoder
    if decoder is None:
        return "decode"
    description = repr(decoder)
    if isinstance(decoder, ByteLevel) or "ByteLevel" in description:
        return "bytes"
    if "▁" in description and ("ByteFallback" in description or "Metaspace" in description):
        return "metaspace" if "Strip" in description or "Metaspace" in description else "fallback"
    return "decode"


def _byte_alphabet() -> dict[str, int]:
    """Return the bytes by the characters that byte-level BPE writes for them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    other_bytes = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(256 + n): byte for n, byte in enumerate(other_bytes)}


def _byte_level(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    alphabet = _byte_alphabet()

    def piece(token_id: int) -> bytes:
        token = tokenizer.id_to_token(token_id) or ""
        try:
            return bytes([alphabet[char] for char in token])
        except KeyError:
            return token.encode()

    return piece


def _metaspace(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    return lambda token_id: _sentencepiece(tokenizer.id_to_token(token_id) or "")


def _sentencepiece(token: str) -> bytes:
    """Return the bytes of a sentencepiece piece: ``▁`` is a space, ``<0xE2>`` a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def _by_decoding(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    def piece(token_id: int) -> bytes:
        return tokenizer.decode([token_id], skip_special_tokens=False).encode()

    return piece


_PIECES: Mapping[str, _Backend] = {
    "bytes": _byte_level,
    "metaspace": _metaspace,
    "fallback": _metaspace,
    "decode": _by_decoding,
}


def _slow_piece(tokenizer: Any) -> Callable[[int], bytes]:
    """Return a lookup of token bytes without a fast backend: tiktoken, tekken, sentencepiece."""
    tiktoken = getattr(getattr(tokenizer, "model", None), "decode_single_token_bytes", None)
    if tiktoken is not None:
        return lambda token_id: bytes(tiktoken(token_id))
    if hasattr(tokenizer, "id_to_byte_piece"):
        return lambda token_id: bytes(tokenizer.id_to_byte_piece(token_id))
    return lambda token_id: _sentencepiece(str(tokenizer.convert_ids_to_tokens(token_id)))


def _slow_added(tokenizer: Any) -> list[AddedToken]:
    decoder = getattr(tokenizer, "added_tokens_decoder", {})
    return [AddedToken(id_, str(token), token.special) for id_, token in decoder.items()]
