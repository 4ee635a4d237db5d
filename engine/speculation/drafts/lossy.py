"""Settings of speculation under which text may differ from the target's own.

Exact verification keeps greedy text unchanged and samples from the target's distribution. Any
setting that is not known to be exact counts as lossy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

METHOD = "rejection_sample_method"
EXACT = frozenset({"standard", "block", "strict", "probabilistic"})
"""Names of exact verification in vLLM 0.32 and in earlier versions."""
KNOWN_LOSSY = {
    "synthetic": "accepts drafts at random: for load tests only",
    "fly": "accepts drafts that the target would not have chosen, if it is unsure",
}
OLD_METHODS = ("acceptance_method", "spec_decoding_acceptance_method")
OLD_EXACT = "rejection_sampler"
RELAXING = (
    "posterior", "typical", "relax", "tolerance", "lenien", "lossy",
    "acceptance_threshold",
)  # fmt: skip
"""Substrings in the names of settings of relaxed acceptance, in older vLLM versions and forks."""


def find_lossy(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a sentence for each setting that may change text. ``settings`` are in vLLM's
    format."""
    return tuple(_list_lossy(settings or {}))


def _list_lossy(settings: Mapping[str, Any]) -> Iterator[str]:
    method = settings.get(METHOD)
    if method is not None and method not in EXACT:
        reason = KNOWN_LOSSY.get(str(method), "is not known to verify drafts exactly")
        yield f"{METHOD} {str(method)!r} {reason}"
    for key, value in settings.items():
        if key in OLD_METHODS and value not in (None, OLD_EXACT):
            yield f"{key} {str(value)!r} is not known to verify drafts exactly"
        elif key != METHOD and value not in (None, False, "none") and _relaxes(key):
            yield f"{key} {str(value)!r} relaxes acceptance"


def _relaxes(key: str) -> bool:
    return any(part in key for part in RELAXING)


def add_lossy(summary: str, lossy: tuple[str, ...]) -> str:
    """Return the summary of a speculation, with a warning at its end if it is lossy."""
    return f"{summary}; LOSSY, text may differ: {'; '.join(lossy)}" if lossy else summary


def refuse_lossy(lossy: tuple[str, ...]) -> str:
    """Return the reason why ``--require-lossless`` prevents the start."""
    return (
        f"--require-lossless: {'; '.join(lossy)}. Leave the setting out, or serve without the flag"
    )
