"""Check finished answers against their grammar, by other means than those that made them.

The engine's grammars are automata over tokens; here the whole text is read by ``jsonschema``, the
``json`` module or ``re``.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

from eaglegate.engine.types import Constraint


def find_breach(constraint: Constraint, text: str) -> str | None:
    """The rule that a finished answer breaks; empty where it keeps all, None where that is unknown.

    Unknown are grammars that nothing here reads, and answers that begin with a reasoning.
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
            return "" if isinstance(value, dict) else "the answer is no JSON object"
        case "json_schema":
            return _check_schema(constraint.value, text)
    return None


def _check_regex(pattern: str, text: str) -> str | None:
    try:
        found = re.fullmatch(pattern, text, re.DOTALL)
    except re.error:  # another dialect
        return None
    return "" if found else "the answer does not match its regular expression"


class _NoJson:
    """In the place of a value that could not be read."""


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NoJson()


def _check_schema(schema: str, text: str) -> str | None:
    value = _read_json(text)
    if isinstance(value, _NoJson):
        return "the answer is no JSON"
    try:
        validators: Any = import_module("jsonschema")
    except ImportError:
        return None
    try:
        found = validators.Draft202012Validator(json.loads(schema))
        error = next(iter(found.iter_errors(value)), None)
    except Exception:  # a schema that this library does not read, such as one with remote parts
        return None
    return "" if error is None else f"the answer breaks '{error.validator}' of its JSON schema"
