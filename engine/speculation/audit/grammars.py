"""Checks of finished answers against their grammar, independent of the code that made them.

The engine's grammars are automata over tokens. Here ``jsonschema``, the ``json`` module or ``re``
reads the whole text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from eaglegate.engine.speculation.audit.tags import Unreadable, find_broken_keyword, matches_tag
from eaglegate.engine.types import Constraint


def find_breach(constraint: Constraint, text: str) -> str | None:
    """Return the rule that a finished answer breaks; empty if it breaks none, None if unknown.

    The result is unknown for grammars that this module cannot read, and for those whose start only
    the engine knows.
    """
    if constraint.after_reasoning:
        return None
    match constraint.kind:
        case "choice":
            return "" if text in constraint.choices else "the answer is none of the choices"
        case "regex":
            return _check_regex(constraint.value, text)
        case "json_object":
            value = _read_json(text)
            return "" if isinstance(value, dict) else "the answer is not a JSON object"
        case "json_schema":
            return _check_schema(constraint.value, text)
        case "structural_tag":
            return _check_tag(constraint.value, text)
    return None


def _check_tag(tag: str, text: str) -> str | None:
    try:
        return "" if matches_tag(tag, text) else "the answer does not match its structural tag"
    except Unreadable:
        return None


def _check_regex(pattern: str, text: str) -> str | None:
    try:
        found = re.fullmatch(pattern, text, re.DOTALL)
    except re.error:  # another dialect
        return None
    return "" if found else "the answer does not match its regular expression"


class _NoJson:
    """Placeholder for a value that could not be read."""


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NoJson()


def _check_schema(schema: str, text: str) -> str | None:
    value = _read_json(text)
    if isinstance(value, _NoJson):
        return "the answer is not JSON"
    try:
        broken = find_broken_keyword(schema, value)
    except Unreadable:
        return None
    return f"the answer breaks '{broken}' of its JSON schema" if broken else ""
