"""Checks of finished answers against their grammar, independent of the code that made them.

The engine's grammars are automata over tokens. Here jsonschema-rs, the ``json`` module or RE2 reads
the whole text.

Clients write the grammar and influence the answer, so this module is a program that ``judge.py``
runs in a child process with limits.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

from eaglegate.engine.stop_signals import block_stop_signals
from eaglegate.engine.types import Constraint
from eaglegate.features.audit.tags import (
    JSON,
    Unreadable,
    compile_pattern,
    find_broken_keyword,
    matches_tag,
)

CPU_S = 0.05
"""Limit on the CPU seconds of one check. Usual answers take under 0.005."""
MEMORY_BYTES = 1 << 30
"""Limit on the child's address space."""
NICENESS = 10


def find_breach(constraint: Constraint, text: str) -> str | None:
    """Return the rule that a finished answer breaks; empty if it breaks none, None if unknown.

    The result is unknown for grammars that this module cannot read, and for those whose start only
    the engine knows.
    """
    if constraint.after_reasoning:
        return None
    try:
        return _find_breach(constraint, text)
    except (Unreadable, ValueError, RecursionError, MemoryError):
        return None


def _find_breach(constraint: Constraint, text: str) -> str | None:
    match constraint.kind:
        case "choice":
            return "" if text in constraint.choices else "the answer is none of the choices"
        case "regex":
            matches = compile_pattern(constraint.value, text).fullmatch(text)
            return "" if matches else "the answer does not match its regular expression"
        case "json_object" | "json_schema":
            return _check_json(constraint, text)
        case "structural_tag":
            matches = matches_tag(constraint.value, text)
            return "" if matches else "the answer does not match its structural tag"
    return None


def _check_json(constraint: Constraint, text: str) -> str:
    try:
        value = JSON.decode(text)
    except json.JSONDecodeError:
        return "the answer is not JSON"
    if constraint.kind == "json_object":
        return "" if isinstance(value, dict) else "the answer is not a JSON object"
    keyword = find_broken_keyword(json.loads(constraint.value), value, text)
    return f"the answer breaks '{keyword}' of its JSON schema" if keyword else ""


def main() -> None:
    """Answer each line of a number, a constraint and a text with the number and the breach.

    The kernel ends a check that takes longer than ``CPU_S``, because compiled code checks no clock.
    """
    block_stop_signals()
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("true", flush=True)
    for line in sys.stdin:
        number, _, question = line.partition(" ")
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        constraint, text = json.loads(question)
        breach = find_breach(Constraint(**constraint), text)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps([int(number), breach]), flush=True)


if __name__ == "__main__":
    main()
