"""This gateway's decision on every field of the official SDKs' requests.

A field works, is refused, or is ignored because the answer is the same without it. A newer SDK with
a field that is not here fails ``test_sdk_fields.py``: decide, act on it in ``server/apis``, and add
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

WORKS, REFUSED, IGNORED = "works", "refused", "ignored"


def decide(**names: str) -> dict[str, str]:
    """Decisions by field, from the fields of each decision."""
    return {field: decision for decision, fields in names.items() for field in fields.split()}


FIELDS: Mapping[str, Mapping[str, str]] = {
    "messages": decide(
        works="""max_tokens messages model output_config output_format stop_sequences stream system
            temperature thinking tool_choice tools top_k top_p""",
        refused="compaction mcp_servers thread",
        ignored="""betas billing_policy cache_control container context_management diagnostics
            fallback_credit_token fallbacks inference_geo metadata service_tier speed
            user_profile_id workspace_id""",
    ),
    "count_tokens": decide(
        works="messages model output_config system thinking tool_choice tools",
        refused="mcp_servers",
        ignored="""betas billing_policy cache_control compaction context_management speed
            user_profile_id workspace_id""",
    ),
    "chat": decide(
        works="""frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages
            modalities model n parallel_tool_calls presence_penalty reasoning_effort
            response_format seed stop stream stream_options temperature tool_choice tools
            top_logprobs top_p verbosity""",
        refused="audio function_call functions moderation",
        ignored="""metadata prediction prompt_cache_key prompt_cache_options
            prompt_cache_retention safety_identifier service_tier store user web_search_options""",
    ),
    "completions": decide(
        works="""best_of echo frequency_penalty logit_bias logprobs max_tokens model n
            presence_penalty prompt seed stop stream stream_options temperature top_p""",
        refused="suffix",
        ignored="user",
    ),
    "responses": decide(
        works="""background conversation include input instructions max_output_tokens metadata
            model parallel_tool_calls previous_response_id reasoning store stream stream_options
            temperature text tool_choice tools top_logprobs top_p truncation""",
        refused="moderation prompt",
        ignored="""access_programs background_options context_management image max_tool_calls
            prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier
            service_tier user""",
    ),
}
"""Decisions by API and field. ``include`` and ``best_of`` list the values that are served."""


def list_undecided(found: Mapping[str, Iterable[str]]) -> list[str]:
    """Fields of an SDK, by API, that the table does not know."""
    return [
        f"{api}: {name}"
        for api, names in found.items()
        for name in names
        if name not in FIELDS[api]
    ]
