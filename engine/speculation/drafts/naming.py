"""Names of the target and the draft on a command line, in any of vLLM's three ways.

A draft is given by ``--speculative-config``, by the short flags ``--spec-method``, ``--spec-model``
and ``--spec-tokens``, or as the model itself, in the speculators format, which names its target.
All three become one ``speculative_config``, as vLLM does later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.speculation.drafts.inspection.checkpoint import (
    NotInspectable,
    locate,
    read_config,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    METHOD_OF_TYPE,
    PART,
    TYPE,
    get_proposed_depth,
    get_verifier,
)
from eaglegate.engine.speculation.drafts.inspection.weights import InvalidCheckpoint

SHORT = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Key of ``speculative_config`` for each of vLLM's short flags."""


def name_speculation(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``arguments`` with a single ``speculative_config``, by the names of vLLM's arguments.

    ``model`` may be a draft in the speculators format. It then becomes the draft, and its target
    the model. Raises EngineStartError if settings contradict each other.
    """
    arguments = merge_short_flags(arguments)
    name = arguments.get("model")
    draft = read_speculators(name, arguments.get("revision")) if isinstance(name, str) else None
    return arguments if draft is None else serve_speculator(arguments, draft)


def merge_short_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the short flags into ``speculative_config``.

    Raises EngineStartError if a flag repeats a key of ``--speculative-config``.
    """
    options = dict(arguments)
    flags = {key: options.pop(name, None) for name, key in SHORT.items()}
    flags = {key: value for key, value in flags.items() if value is not None}
    settings: Any = options.get("speculative_config")
    if isinstance(settings, Mapping):
        settings = {str(key).replace("-", "_"): value for key, value in settings.items()}
        options["speculative_config"] = settings
    if not flags:
        return options
    settings = settings or {}
    for flag, key in SHORT.items():
        if key in flags and key in settings:
            raise EngineStartError(
                f"--{flag.replace('_', '-')} {flags[key]} and '{key}' of --speculative-config "
                f"({settings[key]}) name the same setting: give one of them"
            )
    return options | {"speculative_config": {**settings, **flags}}


def read_speculators(name: str, revision: str | None) -> Mapping[str, Any] | None:
    """Return the config.json of a draft in the speculators format; None for anything else."""
    try:
        config = read_config(locate(name, revision))
    except (NotInspectable, InvalidCheckpoint):
        return None
    return config if config.get(PART) is not None else None


def serve_speculator(arguments: dict[str, Any], draft: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments for the draft's target with that draft. The user's choices override the
    draft's.

    Clients may use either name. Raises EngineStartError.
    """
    name, target = arguments["model"], get_verifier(draft).get("name_or_path")
    if not isinstance(target, str) or not target:
        raise EngineStartError(
            f"{name} is a draft in the speculators format, and its speculators_config.verifier "
            f"names no target. {advise(name, draft)}"
        )
    draft_settings = {"model": name, **describe_method(draft)}
    settings = arguments.get("speculative_config") or {}
    for key, value in draft_settings.items():
        if key in settings and settings[key] != value:
            raise EngineStartError(
                f"{name} is a draft in the speculators format, which fixes {key} to {value!r}; "
                f"given {settings[key]!r}. Leave it out, or name the target as the model"
            )
    proposal = get_proposed_depth(draft)
    depth = {} if proposal is None else {"num_speculative_tokens": proposal}
    revision = arguments.get("revision")
    draft_revision = {} if revision is None else {"revision": revision}
    return {
        **arguments,
        "model": target,
        "revision": None,
        "served_model_name": arguments.get("served_model_name")
        or list(dict.fromkeys((name, target))),
        "speculative_config": {**depth, **draft_revision, **settings, **draft_settings},
    }


def describe_method(draft: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method's settings by type; empty for a type that vLLM does not load, which
    inspection refuses."""
    kind = str(draft.get(TYPE))
    if kind not in METHOD_OF_TYPE:
        return {}
    parallel = {"parallel_drafting": True} if kind == "peagle" else {}
    return {"method": METHOD_OF_TYPE[kind], **parallel}


def advise(name: str, draft: Mapping[str, Any]) -> str:
    depth = get_proposed_depth(draft) or 3
    settings = {"model": name, **describe_method(draft), "num_speculative_tokens": depth}
    return f"Name it: eaglegate serve TARGET --speculative-config '{json.dumps(settings)}'"


def explain_missing_target(target: str, settings: Mapping[str, Any] | None) -> str:
    """Explain why a missing target was requested; empty if the user named it."""
    draft = (settings or {}).get("model")
    config = read_speculators(draft, None) if isinstance(draft, str) else None
    if config is None or get_verifier(config).get("name_or_path") != target:
        return ""
    if Path(target).expanduser().exists():
        return ""
    return f" (the target that the draft {draft} names). {advise(str(draft), config)}"
