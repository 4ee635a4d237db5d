"""The generator: the same text from the same seed, and the same text as the chat template's."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from eaglegate.lab.training.corpus import (
    ANSWER,
    CLOSE,
    DENSE,
    FAR,
    LAST,
    make_document,
    make_long,
    make_short,
    write_tokenizer,
)
from eaglegate.lab.training.data.conversation import LONG, SHORT, conversation
from eaglegate.lab.training.data.source import Source
from eaglegate.lab.training.data.turn import answer_text, prompt_segments, prompt_text
from eaglegate.lab.training.tokenizer import MARKERS, VOCABULARY, wrap

pytestmark = pytest.mark.thorough

SHIPPED = Path(__file__).parents[3] / "engine" / "demo" / "target" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), 11, 3000)


def test_tokenizer_has_the_markers_as_single_tokens(tokenizer):
    assert tokenizer.get_vocab_size() == VOCABULARY
    for marker in [*MARKERS, "<|im_start|>", "<|im_end|>"]:
        assert len(tokenizer.encode(marker, add_special_tokens=False).ids) == 1


@pytest.mark.parametrize("shape", [SHORT, LONG])
def test_renderer_equals_the_chat_template(tokenizer, shape):
    chat, source = wrap(tokenizer), Source(5)
    for _ in range(60 if shape is SHORT else 8):
        made = conversation(source, shape)
        rendered = chat.apply_chat_template(
            made.messages, tools=made.tools, add_generation_prompt=True, tokenize=False
        )
        assert rendered == prompt_text(made)


def test_tokens_survive_the_segments_and_the_round_trip(tokenizer):
    source = Source(6)
    for _ in range(60):
        made = conversation(source)
        parts = [segment.text for segment in prompt_segments(made)] + list(answer_text(made, True))
        pieces = [i for p in parts for i in tokenizer.encode(p, add_special_tokens=False).ids]
        whole = tokenizer.encode("".join(parts), add_special_tokens=False).ids
        assert pieces == whole
        assert tokenizer.decode(whole, skip_special_tokens=False) == "".join(parts)


def test_a_value_has_one_spelling(tokenizer):
    """The same tokens in the user's words and inside JSON quotes make copying easy."""
    for value in ["Lisbon", "broken lamp", "EAQ-77", "grouskil"]:
        inside = tokenizer.encode(value, add_special_tokens=False).ids
        for text in [f'{{"a": "{value}"}}', f"called {value}."]:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert any(ids[i : i + len(inside)] == inside for i in range(len(ids)))


@pytest.mark.parametrize(
    ("make", "seed", "digest"),
    [
        (lambda t, s: make_short(t, s, 100, 0.12), 12, "9ea4ad50080f"),
        (lambda t, s: make_long(t, s, 10), 13, "90ec5038e76b"),
        (lambda t, s: make_short(t, s, 100, 0.25, DENSE), 15, "dc6a032b5dd3"),
        (lambda t, s: make_short(t, s, 100, 0.12, LAST), 16, "3c30423ba86a"),
        (lambda t, s: make_short(t, s, 100, 0.12, CLOSE), 17, "df254a1fe038"),
        (lambda t, s: make_long(t, s, 10, FAR, 0.8), 18, "9bdceb1b3edc"),
    ],
    ids=["short", "long", "dense", "last", "close", "far"],
)
def test_the_sets_are_those_of_the_recipe(make, seed, digest):
    """Another digest means another demo from `make demo-model`: then change it knowingly."""
    shipped = Tokenizer.from_file(str(SHIPPED))
    ids = make(shipped, Source(seed)).ids
    assert hashlib.sha256(ids.tobytes()).hexdigest()[:12] == digest


@pytest.mark.parametrize("shape", [SHORT, LAST], ids=["short", "last"])
def test_of_a_held_answer_only_what_the_model_decides_counts(tokenizer, shape):
    """The loss is on values and what ends them; braces, keys and white space are the grammar's."""
    source, seen = Source(3), 0
    while seen < 40:
        made = conversation(source, shape)
        if made.own_spans is None:
            continue
        seen += 1
        answer = answer_text(made, True)[1]
        ids, weights = make_document(tokenizer, source, made)
        body = len(tokenizer.encode(answer, add_special_tokens=False).ids)
        kept = ids[-body:][weights[-body:] == ANSWER]
        counted = tokenizer.decode([int(i) for i in kept], skip_special_tokens=False)
        form = re.sub(r"^<tool_call>\n|\n</tool_call>$", "", answer.removesuffix("<|im_end|>"))
        assert isinstance(json.loads(form), dict)
        assert not counted.startswith(("{", "<tool_call>"))
        for start, end in made.own_spans:
            assert answer[start:end] in counted
        for key in json.loads(form):
            assert f'"{key}"' not in counted or form.count(key) > 1
        assert "\n" not in counted
