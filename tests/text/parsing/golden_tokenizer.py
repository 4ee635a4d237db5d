"""Tokenizers for tests: byte-level BPE with any format's markers as added tokens.

Trained within the session on a few lines, so that words become tokens of several letters, tags
such as ``</parameter>`` break at odd places (``>\\n`` is one token), and characters the text lacks
(CJK, emoji) are spread over several tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.text.parsing.golden_corpus import Format, Marker, Piece, filler

_TEXT = """
Let me check the weather in Oslo for you. The user asks about the weather, so a tool is needed.
{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius", "days": 3}}
{"name": "search", "parameters": {"query": "x", "limit": 5, "tags": ["a", "b"]}}
[get_weather(city="Oslo", days=3), get_time()]
<function=get_weather>
<parameter=city>
Oslo
</parameter>
</function>
<invoke name="write_file">
<parameter name="path">a.txt</parameter>
<parameter name="content">text</parameter>
</invoke>
<think> </think> <tool_call> </tool_call> <|tool_call_begin|> functions.get_weather:0
Here is my thought process: Here is my response: ```json ``` "}} "}]} \\n \\" \\\\ café naïve
"""
_WORDS = r" ?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+\n*|\s+"


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT * 8, filler(1500)], trainer)
    return tokenizer.to_str()


@cache
def tokenizer(markers: Sequence[str], special: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer with ``markers`` as added tokens, which decode as text; ``special`` ones do
    not."""
    made = Tokenizer.from_str(_trained())
    made.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in markers])
    made.add_special_tokens([AddedToken(marker, special=True) for marker in special])
    return made


def format_tokenizer(form: Format) -> Tokenizer:
    """The tokenizer of a file of cases."""
    ends = () if form.eos is None else (form.eos,)
    return tokenizer(form.markers, (*form.special, *ends))


@cache
def _plain() -> Tokenizer:
    return Tokenizer.from_str(_trained())


@cache
def _letters(text: str) -> list[int]:
    return [token_id for letter in text for token_id in _encode(letter)]


def _encode(text: str) -> list[int]:
    return _plain().encode(text, add_special_tokens=False).ids


def encode(tokenizer: Tokenizer, pieces: Iterable[Piece], *, in_letters: bool = False) -> list[int]:
    """Markers as their one token; text as ordinary tokens, whatever it spells."""
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, Marker):
            found = tokenizer.token_to_id(piece.token)
            assert found is not None, f"{piece.token} is no token of this format"
            ids.append(found)
        else:
            ids += _letters(piece) if in_letters else _encode(piece)
    return ids
