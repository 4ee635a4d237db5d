"""Text out of token ids, against the tokenizers themselves."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from eaglegate.text.parsing.vocabulary import Vocabulary

DEMO = Path(__file__).parents[3] / "engine/demo/target/tokenizer.json"
TEXT = "Grüße, 東京 👩‍👩‍👧‍👦 étude\n\tdef f(x): return '<|x|>'  # ✓"


def sentencepiece() -> Tokenizer:
    """Byte fallback and ``▁`` for spaces, as Llama 2 and Mistral before tekken."""
    words = ["<unk>", "▁", "▁the", "a", "b", "é", "▁x", *(f"<0x{n:02X}>" for n in range(256))]
    tokenizer = Tokenizer(
        models.BPE(
            {word: n for n, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def pieces(vocabulary: Vocabulary, ids: list[int]) -> str:
    decoder = vocabulary.decoder()
    return "".join(decoder.text([token_id]) for token_id in ids)


def test_byte_level_text_is_exact_however_it_is_cut():
    tokenizer = Tokenizer.from_file(str(DEMO))
    vocabulary = Vocabulary.from_tokenizers(tokenizer)
    ids = vocabulary.encode(TEXT)
    assert pieces(vocabulary, ids) == TEXT
    assert vocabulary.decoder().text(ids) == TEXT


def test_byte_level_equals_decode_on_any_ids():
    tokenizer = Tokenizer.from_file(str(DEMO))
    vocabulary = Vocabulary.from_tokenizers(tokenizer)
    rnd = random.Random(5)
    for _ in range(200):
        ids = [rnd.randrange(4, 1500) for _ in range(rnd.randrange(12))]
        decoder = vocabulary.decoder()
        text = "".join(decoder.text([token_id]) for token_id in ids) + decoder.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens=False)


def test_an_unfinished_character_at_the_end_is_not_written():
    vocabulary = Vocabulary.from_tokenizers(Tokenizer.from_file(str(DEMO)))
    ids = vocabulary.encode("né東")[:-1]
    assert pieces(vocabulary, ids) == "né"


@pytest.mark.parametrize("ids", [[1, 3, 4], [2, 6, 4, 1], [2, 7 + 0xC3, 7 + 0xA9, 3], [3, 2]])
def test_sentencepiece_with_byte_fallback(ids):
    tokenizer = sentencepiece()
    vocabulary = Vocabulary.from_tokenizers(tokenizer)
    assert pieces(vocabulary, ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("ids", [[2, 6, 4], [3, 2, 6]])
def test_metaspace(ids):
    tokenizer = metaspace()
    assert pieces(Vocabulary.from_tokenizers(tokenizer), ids) == tokenizer.decode(ids)


def test_a_tokenizer_that_transformers_loaded():
    transformers = pytest.importorskip("transformers")
    loaded = transformers.PreTrainedTokenizerFast(tokenizer_file=str(DEMO))
    vocabulary = Vocabulary.from_transformers(loaded)
    assert pieces(vocabulary, vocabulary.encode(TEXT)) == TEXT


def test_a_tokenizer_on_tiktoken():
    """Kimi's: ``transformers`` code around a ``tiktoken.Encoding``."""
    tiktoken = pytest.importorskip("tiktoken")
    special = {"<|im_end|>": 257}
    ranks = {bytes([n]): n for n in range(256)} | {"é".encode(): 256}
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special
    )

    class Slow:
        model = encoding

        @property
        def added_tokens_decoder(self):
            return {257: AddedToken("<|im_end|>", special=True)}

        def __len__(self) -> int:
            return 258

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return encoding.encode(text, disallowed_special=())

    vocabulary = Vocabulary.from_transformers(Slow())
    assert pieces(vocabulary, vocabulary.encode(TEXT)) == TEXT
    assert vocabulary.added[257].special


def test_structure_is_markers_and_special_tokens():
    vocabulary = Vocabulary.from_tokenizers(Tokenizer.from_file(str(DEMO)))
    ids = vocabulary.ids
    structure = vocabulary.structure(("<think>", "absent"), "", True)
    assert structure[ids["<think>"]] == "<think>"
    assert structure[ids["<|im_end|>"]] is None
    assert ids["<tool_call>"] not in structure
    assert ids["<|im_end|>"] not in vocabulary.structure((), "", False)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError, match="give a folder"):
        Vocabulary.from_directory(tmp_path / "absent")


def test_the_end_token_of_a_folder_is_no_text(tmp_path):
    """Some tokenizers add it as an ordinary token, and only the configuration tells."""
    tokenizer = Tokenizer.from_file(str(DEMO))
    tokenizer.add_tokens([AddedToken("<end>", special=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for named in ("<end>", {"content": "<end>"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
        vocabulary = Vocabulary.from_directory(tmp_path)
        assert vocabulary.added[vocabulary.ids["<end>"]].special
