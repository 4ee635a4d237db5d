"""Settings of speculation under which text may differ from the target's own.

Exact verification leaves greedy text as it is and samples from the target's distribution. What is
not known to do so counts as lossy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

METHOD = "rejection_sample_method"
EXACT = frozenset({"standard", "block", "strict", "probabilistic"})
"""Exact verification: vLLM 0.32's names, and those of earlier versions."""
KNOWN_LOSSY = {
    "synthetic": "accepts drafts by dice: for load tests only",
    "fly": "accepts drafts that the target would not have said, where it is unsure",
}
OLD_METHODS = ("acceptance_method", "spec_decoding_acceptance_method")
OLD_EXACT = "rejection_sampler"
RELAXING = (
    "posterior", "typical", "relax", "tolerance", "lenien", "lossy",
    "acceptance_threshold",
)  # fmt: skip
"""Parts of names that settings of relaxed acceptance have, in vLLM's earlier versions and forks."""


def find_lossy(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """A sentence for each setting that may change text; ``settings`` as vLLM takes them."""
    return tuple(_list_lossy(settings or {}))


def _list_lossy(settings: Mapping[str, Any]) -> Iterator[str]:
    method = settings.get(METHOD)
    if method is not None and method not in EXACT:
        why = KNOWN_LOSSY.get(str(method), "is not known to verify drafts exactly")
        yield f"{METHOD} {str(method)!r} {why}"
    for key, value in settings.items():
        if key in OLD_METHODS and value not in (None, OLD_EXACT):
            yield f"{key} {str(value)!r} is not known to verify drafts exactly"
        elif key != METHOD and value not in (None, False, "none") and _relaxes(key):
            yield f"{key} {str(value)!r} relaxes what is accepted"


def _relaxes(key: str) -> bool:
    return any(part in key for part in RELAXING)


def add_lossy(summary: str, lossy: tuple[str, ...]) -> str:
    """The summary of a speculation, with a loud end where it is lossy."""
    return f"{summary}; LOSSY, text may differ: {'; '.join(lossy)}" if lossy else summary


def refuse_lossy(lossy: tuple[str, ...]) -> str:
    """Why ``--require-lossless`` does not let it start."""
    return (
        f"--require-lossless: {'; '.join(lossy)}. Leave the setting out, or serve without the flag"
    )
