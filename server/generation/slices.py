"""Slices of a request in metrics and policies: its workload, and a fingerprint of its prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import orjson

from eaglegate.engine.types import CHAT, REASONING, STRUCTURED, TOOLS


def classify_workload(
    requested_workload: str | None,
    workloads: Collection[str],
    *,
    has_tools: bool,
    has_constraint: bool,
    has_reasoning: bool,
) -> str:
    """Return the workload named by the client if it is configured, else one derived from the
    request.

    Unknown names are ignored, because they would become label values.
    """
    if requested_workload is not None and requested_workload in workloads:
        return requested_workload
    if has_constraint:
        return STRUCTURED
    if has_tools:
        return TOOLS
    return REASONING if has_reasoning else CHAT


def fingerprint(system: Iterable[str], tools: object = None) -> str:
    """Return eight hex digits that identify system prompts and tool schemas; empty without
    either.
    """
    texts = [text for text in system if text]
    if not texts and not tools:
        return ""
    content = orjson.dumps([texts, tools], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()[:8]
