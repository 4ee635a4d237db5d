"""Which slice of the traffic a request belongs to: its workload and its template."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable

import orjson

from engine.observer import CHAT, REASONING, STRUCTURED, TOOLS


def workload(
    named: str | None,
    known: Collection[str],
    *,
    tools: bool,
    structured: bool,
    reasoning: bool,
) -> str:
    """The name the client gave if it is a configured one, else what the request asks for.

    An unknown name is ignored, never passed on: it would become a label value.
    """
    if named is not None and named in known:
        return named
    if structured:
        return STRUCTURED
    if tools:
        return TOOLS
    return REASONING if reasoning else CHAT


def fingerprint(system: Iterable[str], tools: object = None) -> str:
    """Eight hex digits that stand for system prompts and tool schemas; empty without either."""
    texts = [text for text in system if text]
    if not texts and not tools:
        return ""
    content = orjson.dumps([texts, tools], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(content).hexdigest()[:8]
