"""Settings of speculation that may change text."""

from __future__ import annotations

from typing import Any

import pytest

from eaglegate.engine.speculation.drafts.lossy import add_lossy, find_lossy


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {},
        {"method": "eagle3", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"},
        {"rejection_sample_method": "standard"},
        {"rejection_sample_method": "block"},
        {"rejection_sample_method": None, "suffix_decoding_min_token_prob": 0.1},
        {"relaxed_target_method": "none", "acceptance_method": "rejection_sampler"},
        {"fly_entropy_threshold": 0.3},
    ],
)
def test_exact_settings(settings: dict[str, Any] | None):
    assert find_lossy(settings) == ()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rejection_sample_method": "synthetic"}, "'synthetic' accepts drafts at random"),
        ({"rejection_sample_method": "fly"}, "'fly' accepts drafts that the target would not"),
        ({"rejection_sample_method": "entropy_gate"}, "'entropy_gate' is not known to verify"),
        ({"spec_decoding_acceptance_method": "typical_acceptance_sampler"}, "is not known"),
        ({"typical_acceptance_sampler_posterior_threshold": 0.09}, "'0.09' relaxes"),
        ({"posterior_alpha": 0.3}, "posterior_alpha"),
        ({"relaxed_target_method": "cactus"}, "'cactus' relaxes"),
        ({"accept_tolerance": 1.0}, "accept_tolerance"),
    ],
)
def test_lossy_settings(settings: dict[str, Any], named: str):
    [sentence] = find_lossy({"method": "eagle3", **settings})
    assert named in sentence
    assert sentence in add_lossy("EAGLE 3", (sentence,))
