"""Rules about drafts in the speculators format: the folder's statements about itself and its
target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from eaglegate.engine.speculation.drafts.inspection.case import (
    InspectionCase,
    RuleCheck,
    Violation,
    error,
    note,
    warning,
)
from eaglegate.engine.speculation.drafts.inspection.speculators import (
    LAYER_PART,
    METHOD_OF_TYPE,
    NOT_LOADED,
    PART,
    TYPE,
    get_mapping,
    get_proposal,
    get_proposed_depth,
    get_strings,
    get_verifier,
)

FAMILY = re.compile(r"[A-Z]+[a-z]*")
ONE_LINER = "`eaglegate serve SPECULATOR` cannot use it"


def check_type(case: InspectionCase) -> Iterator[Violation]:
    kind = case.draft.raw.get(TYPE)
    if kind in METHOD_OF_TYPE:
        return
    if kind in NOT_LOADED:
        yield error(f"vLLM does not load the speculators type {kind!r}", NOT_LOADED[str(kind)])
        return
    matches = get_close_matches(str(kind), METHOD_OF_TYPE, 1)
    yield error(
        f"{TYPE} is {kind!r}, which vLLM does not load",
        f"did you mean {matches[0]!r}?" if matches else f"vLLM loads {', '.join(METHOD_OF_TYPE)}",
    )


def check_parts(case: InspectionCase) -> Iterator[Violation]:
    """Check the format's parts. Without ``speculators_config`` vLLM does not recognise the
    format."""
    for key in (PART, LAYER_PART):
        part = case.draft.raw.get(key)
        if not isinstance(part, dict):
            yield error(
                f"{key} is {'absent' if part is None else 'not an object'}",
                "export the draft again with the speculators library",
            )


def check_proposal(case: InspectionCase) -> Iterator[Violation]:
    config = case.draft.raw
    if not isinstance(config.get(PART), dict):
        return
    depth = get_proposed_depth(config)
    if depth is None or depth < 1:
        proposal = get_proposal(config).get("speculative_tokens")
        yield warning(
            f"speculators_config proposes {proposal!r} speculative_tokens; {ONE_LINER}",
            "give a whole number of at least 1 in the first of proposal_methods",
        )


def check_relaxed(case: InspectionCase) -> Iterator[Violation]:
    proposal = get_proposal(case.draft.raw)
    if proposal.get("verifier_accept_k", 1) != 1 or proposal.get("accept_tolerance", 0):
        yield note(
            "speculators_config accepts tokens besides the target's own; vLLM does not read that",
            "acceptance stays exact, and below what was measured with it",
        )


def check_algorithm(case: InspectionCase) -> Iterator[Violation]:
    algorithm, kind = get_mapping(case.draft.raw, PART).get("algorithm"), case.draft.raw.get(TYPE)
    if algorithm is not None and kind is not None and algorithm != kind:
        yield warning(
            f"speculators_config says algorithm {algorithm!r}, and {TYPE} is {kind!r}",
            f"vLLM uses {TYPE}; correct the wrong one",
        )


def check_verifier(case: InspectionCase) -> Iterator[Violation]:
    """Check that the target has the architecture for which the draft was trained."""
    verifier = get_verifier(case.draft.raw)
    if isinstance(case.draft.raw.get(PART), dict) and not isinstance(
        verifier.get("name_or_path"), str
    ):
        yield warning(
            f"speculators_config names no verifier; {ONE_LINER}",
            'write the target to "verifier": {"name_or_path": ...}',
        )
    architectures = get_strings(verifier, "architectures")
    target_architectures = case.target.architectures if case.target else ()
    if (
        not architectures
        or not target_architectures
        or set(architectures) & set(target_architectures)
    ):
        return
    problem = (
        f"the draft was trained for {architectures[0]}, this target is {target_architectures[0]}"
    )
    if set(map(get_family, architectures)) & set(map(get_family, target_architectures)):
        yield warning(problem, "right only if both have the same text model")
    else:
        yield error(problem, "use the draft made for this target")


def get_family(architecture: str) -> str:
    """Return the first word of an architecture, such as Qwen of Qwen3MoeForCausalLM."""
    match = FAMILY.match(architecture)
    return match[0] if match else architecture


RULES: dict[str, RuleCheck] = {
    "speculators-type": check_type,
    "speculators-parts": check_parts,
    "proposal": check_proposal,
    "relaxed-acceptance": check_relaxed,
    "algorithm": check_algorithm,
    "verifier": check_verifier,
}
