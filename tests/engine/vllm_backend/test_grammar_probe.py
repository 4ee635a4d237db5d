"""Constraints that would hold up the engine are found before it meets them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from eaglegate.engine.errors import RequestRejected
from eaglegate.engine.types import Constraint
from eaglegate.engine.vllm_backend.arguments import DEMO
from eaglegate.engine.vllm_backend.grammar_probe import MAX_BYTES, GrammarProbe
from eaglegate.engine.vllm_backend.grammar_trial import shorten, split_repeated_groups

pytestmark = pytest.mark.alone

ENUM = json.dumps({"enum": [f"value-{number}" for number in range(20_000)]})
CONTENT = {"type": "json_schema", "json_schema": {"type": "object"}}
TAGGED = json.dumps(
    {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<t>", "content": CONTENT, "end": "</t>"},
    }
)
WIDE = json.dumps({"type": "object", "properties": {f"p{at}": {} for at in range(8_000)}})


BOMB = "(.?){600}"
HIDDEN = [
    ("grammar", f'start: "1" rep\nrep: /{BOMB}/'),
    ("grammar", 'root ::= "1" rep\nrep ::= (any?){600}\nany ::= [^\\n]'),
    ("regex", "x" * 3000 + BOMB),
    ("regex", "[ab]{1500}" + BOMB),
    ("grammar", f"start: /[ab]{{1500}}/ rep\nrep: /{BOMB}/"),
    ("json_schema", json.dumps({"type": "string", "pattern": f"^[ab]{{1500}}{BOMB}$"})),
    ("regex", "[ab]{5000}" + ".?" * 60),
    ("regex", "(ab|cd){3000}" + ".?" * 60),
]


DEAD = [
    ("grammar", "root ::= root"),
    ("grammar", "root ::= a\na ::= b\nb ::= a"),
    ("grammar", 'root ::= "x" b\nb ::= b'),
    ("json_schema", '{"$ref": "#"}'),
    (
        "structural_tag",
        json.dumps({"type": "structural_tag", "format": CONTENT | {"json_schema": {"$ref": "#"}}}),
    ),
]


async def test_grammars_that_match_no_text_are_refused():
    """An engine fails on them, in the middle of the answer."""
    probe = GrammarProbe(str(DEMO / "target"))
    try:
        for kind, value in DEAD:
            with pytest.raises(RequestRejected, match="no text matches"):
                await probe.check(Constraint(kind, value))
        for value in ('root ::= ""', 'root ::= root "b" | "b"', 'root ::= "a"?'):
            await probe.check(Constraint("grammar", value))
    finally:
        await probe.aclose()


async def test_good_ones_pass_and_bad_ones_do_not():
    probe = GrammarProbe(str(DEMO / "target"))
    try:
        await probe.check(Constraint("json_schema", '{"type": "object"}'))
        await probe.check(Constraint("regex", r"\d{4}-\d{2}-\d{2}"))
        await probe.check(Constraint("json_object"))
        await probe.check(Constraint("structural_tag", TAGGED))
        await probe.check(Constraint("grammar", 'start: "yes" | "no"'))
        await probe.check(Constraint("grammar", 'root ::= "yes" | "no"'))
        await probe.check(Constraint("regex", r"([0-9]{1,3}\\.){3}[0-9]{1,3}"))
        for kind in ("regex", "grammar", "json_schema", "structural_tag"):
            with pytest.raises(RequestRejected) as refused:
                await probe.check(Constraint(kind, "(((unbalanced"))
            why = str(refused.value)
            assert "too complex" not in why and "compiled" not in why
            assert len(why) > 1 and why.endswith(".") and not why.endswith("..")
        for constraint in (
            Constraint("regex", "(.?){600}"),
            Constraint("json_schema", ENUM if len(ENUM) < MAX_BYTES else WIDE),
            *(Constraint(kind, hidden) for kind, hidden in HIDDEN),
        ):
            with pytest.raises(RequestRejected, match="too complex"):
                await probe.check(constraint)
        await probe.check(Constraint("regex", "[a-c]{1,3}"))
        began = time.perf_counter()
        with pytest.raises(RequestRejected, match="too complex"):
            await probe.check(Constraint("regex", "(.?){600}"))
        assert time.perf_counter() - began < 0.1, "a verdict is remembered"
    finally:
        await probe.aclose()


WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have",
)  # fmt: skip
MARKS = tuple('":,{}[].-_/()=+*<>!?#ĠĊ')


def many_tokens(folder: Path, size: int) -> Path:
    """A tokenizer with as many tokens as large models have: pieces of words, marks, numbers."""
    chance, alphabet = random.Random(1), sorted(ByteLevel.alphabet())
    tokens = dict.fromkeys([*alphabet, "<|end|>"])
    while len(tokens) < size:
        word = "".join(chance.choices(WORDS, k=chance.randint(1, 3)))[: chance.randint(2, 12)]
        marks = "".join(chance.choices(MARKS, k=chance.randint(2, 4)))
        strange = "".join(chance.choices(alphabet, k=chance.randint(2, 5)))
        tokens |= dict.fromkeys([chance.choice(("Ġ", "")) + word, marks, strange, word.title()])
    tokenizer = Tokenizer(BPE({token: at for at, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(), ByteLevelDecoder()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


async def test_a_large_vocabulary_makes_usual_schemas_slow_and_bad_ones_worse(tmp_path):
    probe = GrammarProbe(str(many_tokens(tmp_path / "large", 151_000)))
    bounded = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 200}}}
    try:
        await probe.check(Constraint("json_schema", json.dumps(bounded)))
        await probe.check(Constraint("regex", r"[^\n]{1,100}"))
        with pytest.raises(RequestRejected, match="too complex"):
            await probe.check(Constraint("regex", "(.?){100}"))
    finally:
        await probe.aclose()


async def test_a_cancelled_check_does_not_answer_the_next():
    probe = GrammarProbe(str(DEMO / "target"))
    try:
        await probe.check(Constraint("regex", "a"))
        leaving = asyncio.create_task(probe.check(Constraint("regex", "(.?){600}")))
        while probe._number < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        leaving.cancel()
        await probe.check(Constraint("regex", "[a-c]{1,3}"))
    finally:
        await probe.aclose()


async def test_size_is_bounded_without_a_trial():
    probe = GrammarProbe("nowhere")
    with pytest.raises(RequestRejected, match=f"at most {MAX_BYTES}"):
        await probe.check(Constraint("regex", "a" * (MAX_BYTES + 1)))


async def test_without_a_vocabulary_nothing_passes(tmp_path):
    probe = GrammarProbe(str(tmp_path))
    with pytest.raises(RequestRejected, match="cannot be checked"):
        await probe.check(Constraint("regex", "a"))
    await probe.aclose()


@pytest.mark.parametrize(
    ("kind", "value", "short"),
    [
        ("regex", "[ab]{5000}.?x{2,3}", "[ab]{1}.?x{2,3}"),
        ("regex", "a{0,900}b{16,}c{,20}", "a{0,1}b{1}c{0,1}"),
        ("grammar", 'start: "x"~5000 rep~2 y~3..90', 'start: "x"~1 rep~2 y~1'),
        (
            "json_schema",
            '{"minLength": 900, "maxLength": 901}',
            '{"minLength": 1, "maxLength": 901}',
        ),
        ("json_schema", '{"a": [{"pattern": "x{99}"}]}', '{"a": [{"pattern": "x{1}"}]}'),
    ],
)
def test_a_walk_comes_to_what_is_behind_many_repetitions(kind, value, short):
    assert shorten(kind, value) == short


@pytest.mark.parametrize("optional", [".?", "[ab]?", r"\d*", "a?", "[^\\]]?"])
def test_a_run_of_optional_parts_is_walked_by_itself_wherever_it_stands(optional):
    run = optional * 20
    for kind, value in (
        ("regex", "[ab][bc]" * 999 + run),
        ("json_schema", json.dumps({"pattern": f"^x{run}"})),
    ):
        assert any(run in piece for piece in split_repeated_groups(kind, value))
    assert not list(split_repeated_groups("regex", optional * 15))
