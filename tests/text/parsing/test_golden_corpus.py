"""The corpus itself: large enough, and what its tokenizers make of it decodes to what it says."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.text.parsing.golden_corpus import Case, Format, Marker, corpus, formats
from tests.text.parsing.golden_tokenizer import encode, format_tokenizer

FORMATS = list(formats().values())

VARIATIONS = {
    *("apertus", "cohere", "deepseek_v4", "deepseek_v41", "dots", "gemma4", "granite_20b_fc"),
    *("hunyuan_a13b", "internlm", "jamba", "kimi_k3", "lfm2", "longcat", "mimo", "olmo3"),
    *("phi4_mini_json", "seed_oss", "xlam", "functiongemma", "gigachat3", "hy_v3", "hy_v4"),
    *("inkling", "k2_horizon", "k2_horizon_json", "k2_horizon_typed", "minicpm5", "minimax_m3"),
    *("muse", "muse_glimmer", "plamo3", "poolside_v1", "solar_open2", "step3"),
    *("gigachat35", "iquest_q1", "nemotron_json"),
}


def of(form: Format) -> list[Case]:
    return [case for case in corpus() if case.format.name == form.name]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_format_has_cases_of_their_own_names(form: Format) -> None:
    """Forty for a grammar, ten for a variation of one that has as many."""
    names = Counter(case.name for case in of(form))
    defined = [case for case in of(form) if case.defined]
    assert len(defined) >= (10 if form.name in VARIATIONS else 40)
    assert [name for name, times in names.items() if times > 1] == []


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_tokens_decode_to_the_text(form: Format) -> None:
    for case in of(form):
        tokenizer = format_tokenizer(case.format)
        text = "".join(map(str, case.pieces))
        ids = encode(tokenizer, case.pieces)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, case.id


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_text_that_spells_a_marker_is_not_the_marker(form: Format) -> None:
    tokenizer = format_tokenizer(form)
    for marker in (*form.markers, *form.special):
        assert encode(tokenizer, [Marker(marker)]) != encode(tokenizer, [marker])


def test_well_formed_calls_have_json_objects() -> None:
    for case in corpus():
        for call in case.calls:
            if call.outcome in ("valid", "schema_mismatch"):
                assert isinstance(json.loads(call.arguments), dict), case.id
