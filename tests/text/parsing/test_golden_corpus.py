"""The corpus itself: large enough, and what its tokenizers make of it decodes to what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.text.parsing.golden_corpus import Case, Marker, by_format, corpus, formats
from tests.text.parsing.golden_tokenizer import encode, format_tokenizer

VARIATIONS = {
    *("apertus", "cohere", "deepseek_v4", "deepseek_v41", "dots", "gemma4", "granite_20b_fc"),
    *("hunyuan_a13b", "internlm", "jamba", "kimi_k3", "lfm2", "longcat", "mimo", "olmo3"),
    *("phi4_mini_json", "seed_oss", "xlam", "functiongemma", "gigachat3", "hy_v3", "hy_v4"),
    *("inkling", "k2_horizon", "k2_horizon_json", "k2_horizon_typed", "minicpm5", "minimax_m3"),
    *("muse", "muse_glimmer", "plamo3", "poolside_v1", "solar_open2", "step3"),
    *("gigachat35", "iquest_q1", "nemotron_json"),
}


def test_every_format_has_cases_of_their_own_names() -> None:
    """Forty for a grammar, ten for a variation of one that has as many."""
    for form in formats().values():
        cases = [case for case in corpus() if case.format.name == form.name]
        least = 10 if form.name in VARIATIONS else 40
        assert sum(case.defined for case in cases) >= least, form.name
        assert len({case.name for case in cases}) == len(cases), form.name


@pytest.mark.parametrize("cases", by_format())
def test_tokens_decode_to_the_text(cases: Sequence[Case]) -> None:
    for case in cases:
        tokenizer = format_tokenizer(case.format)
        ids = encode(tokenizer, case.pieces)
        assert tokenizer.decode(ids, skip_special_tokens=False) == "".join(map(str, case.pieces))


def test_text_that_spells_a_marker_is_not_the_marker() -> None:
    for form in formats().values():
        tokenizer = format_tokenizer(form)
        for marker in (*form.markers, *form.special):
            assert encode(tokenizer, [Marker(marker)]) != encode(tokenizer, [marker])


def test_well_formed_calls_have_json_objects() -> None:
    for case in corpus():
        for call in case.calls:
            if call.outcome in ("valid", "schema_mismatch"):
                assert isinstance(json.loads(call.arguments), dict), case.id
