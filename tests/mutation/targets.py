"""The modules that are mutated, and the tests that should notice."""

from __future__ import annotations

FULL_QUEUE = tuple(
    f"tests/server/access/test_fairness.py::{test}"
    for test in (
        "test_a_full_queue_has_room_for_a_key_below_its_share",
        "test_a_request_that_is_still_rendered_gives_way_at_its_turn",
        "test_queued_tokens_are_shared_too",
        "test_a_flood_is_what_a_full_queue_refuses",
    )
)
"""The tests of fairness that simulate nothing."""

ACCOUNTS = (
    "tests/server/access/test_budget.py",
    "tests/server/access/test_bounds.py",
    "tests/server/access/test_quota.py",
    "tests/server/access/test_admission.py",
    "tests/server/access/test_keys.py",
    "tests/server/access/test_clock.py",
    "tests/server/stateful/test_admission.py::test_quotas_follow_their_model",
)
STORED = (
    "tests/server/store/test_store_held.py",
    "tests/server/store/test_store.py",
    "tests/server/apis/responses/test_conversations.py",
    "tests/server/apis/responses/test_item_references.py",
)
PLANS = tuple(
    f"tests/engine/speculation/test_serving_aims.py::{test}"
    for test in (
        "test_requests_of_several_kinds_are_served_faster_than_at_any_fixed_depth",
        "test_changes_of_traffic_are_found_within_thirty_steps",
        "test_planner_reaches_the_best_fixed_depth[changes on two cores]",
    )
)
"""Whole runs of the planner, the quickest of each kind."""
RECOVERY = (
    "tests/engine/supervision/test_supervisor.py",
    "tests/engine/supervision/test_blame.py",
    "tests/engine/supervision/test_depth_bound.py",
    "tests/engine/supervision/test_restarts.py",
)

TARGETS: dict[str, tuple[str, ...]] = {
    "server/access/admission.py": (
        "tests/server/access/test_admission.py",
        "tests/server/access/test_fair_order.py",
        "tests/server/access/test_places.py",
        "tests/server/cli/test_drain.py",
        *FULL_QUEUE,
    ),
    "server/access/fair_order.py": (
        "tests/server/access/test_fair_order.py",
        "tests/server/access/test_admission.py",
    ),
    "server/access/prompt_turns.py": ("tests/server/access/test_prompt_turns.py",),
    "server/access/isolation.py": ("tests/server/access/test_cache_isolation.py",),
    "server/access/key_classes.py": ("tests/server/access/test_key_classes.py",),
    "server/access/auth.py": (
        "tests/server/access/test_door.py",
        "tests/server/apis/operations/test_admin.py",
        "tests/server/access/test_quota.py",
        "tests/server/access/test_model_access.py",
    ),
    "server/access/rate_limits.py": ("tests/server/access/test_quota.py",),
    "server/http/connection_limits.py": ("tests/server/http/test_connections.py",),
    "server/apis/responses/conversations.py": (
        "tests/server/apis/responses/test_conversations.py",
        "tests/server/apis/responses/test_item_references.py",
    ),
    "features/fair_share/fair_share.py": ("tests/features/fair_share/test_fair_share.py",),
    "server/generation/trials.py": ("tests/server/generation/test_trials.py",),
    "server/access/budget.py": (*ACCOUNTS, "tests/server/http/test_slow_readers.py"),
    "server/access/caller.py": ACCOUNTS,
    "server/access/keys.py": (
        "tests/server/access/test_keys.py",
        "tests/server/access/test_door.py",
        "tests/server/access/test_clock.py",
    ),
    "server/store/sql.py": STORED,
    "server/store/conversations.py": STORED,
    "server/store/items.py": STORED,
    "server/store/database.py": (
        "tests/server/store/test_database.py",
        "tests/server/store/test_store.py",
    ),
    "server/apis/responses/background.py": (
        "tests/server/apis/responses/test_background.py",
        "tests/server/apis/responses/test_responses.py",
    ),
    "server/generation/prompt.py": (
        "tests/server/generation/test_context.py",
        "tests/server/generation/test_truncation.py",
    ),
    "server/generation/generate.py": (
        "tests/server/generation/test_generate.py",
        "tests/server/backends/test_adapters.py::test_a_request_names_its_adapter_as_model",
        "tests/server/access/test_fairness.py::test_the_service_rate_is_learnt_from_served_requests_only",
        "tests/server/access/test_bounds.py",
        "tests/server/access/test_quota.py",
        "tests/server/generation/test_choices.py",
        "tests/server/apis/chat/test_chat.py",
        "tests/server/apis/chat/test_chat_errors.py",
        "tests/server/apis/completions/test_completions.py",
        "tests/server/apis/chat/test_chat_extras.py",
        "tests/server/access/test_admission.py",
    ),
    "text/parsing/stop.py": ("tests/text/parsing/test_stop.py",),
    "text/parsing/markers.py": (
        "tests/text/parsing/test_markers.py",
        "tests/text/parsing/test_golden.py",
        "tests/text/parsing/test_parser.py",
        "tests/text/parsing/test_free_text.py",
        "tests/text/parsing/test_damaged.py",
        "tests/text/parsing/test_shapes.py",
    ),
    **dict.fromkeys(
        ("engine/speculation/accounts/accounting.py", "engine/totals.py"),
        (
            "tests/engine/speculation/test_accounting.py",
            "tests/observability/test_account_scripted.py",
        ),
    ),
    "features/lookups/acceptance.py": (
        "tests/features/lookups/test_lookup_choice.py",
        "tests/engine/speculation/test_slice_rows.py",
    ),
    "observability/facts.py": ("tests/observability/test_facts.py",),
    "engine/speculation/planner/planner.py": (
        "tests/engine/speculation/test_planner.py",
        "tests/engine/speculation/test_probes.py",
        *PLANS,
    ),
    "engine/speculation/planner/probes.py": (
        "tests/engine/speculation/test_probes.py",
        "tests/engine/speculation/test_recovery.py",
        "tests/engine/speculation/test_planner.py",
        *PLANS,
    ),
    "text/media/decoder_pool.py": ("tests/text/media/test_hostile_images.py",),
    "text/media/fetch.py": ("tests/text/media/test_fetch.py",),
    "text/media/reader.py": (
        "tests/text/media/test_reader.py",
        "tests/text/media/test_fetch.py",
        "tests/server/apis/shared/test_images.py",
    ),
    "features/audit/files.py": ("tests/features/audit/test_auditor.py",),
    "engine/remote/connection.py": (
        "tests/engine/remote/test_connection.py",
        "tests/engine/remote/test_bad_workers.py",
        "tests/engine/remote/test_remote_engine.py",
        "tests/engine/remote/test_refusals.py",
        "tests/engine/remote/test_stream_limits.py",
    ),
    "engine/supervision/continuation.py": (
        "tests/engine/supervision/test_continuation.py",
        *RECOVERY,
    ),
    "engine/supervision/recovery.py": (
        "tests/engine/supervision/test_recovery.py",
        "tests/engine/supervision/test_draft_blame.py",
        "tests/engine/supervision/test_unclaimed.py",
        *RECOVERY,
        "tests/engine/fleet/test_fleet.py",
    ),
    "features/capture/capture.py": (
        "tests/features/capture/test_served.py",
        "tests/features/capture/test_redaction.py",
    ),
    "features/capture/command.py": ("tests/features/capture/test_command.py",),
    "features/capture/files.py": ("tests/features/capture/test_writer.py",),
    "observability/captures/files.py": (
        "tests/observability/captures/test_record.py",
        "tests/features/capture/test_command.py",
    ),
    "observability/captures/record.py": (
        "tests/observability/captures/test_record.py",
        "tests/features/capture/test_command.py",
        "tests/features/capture/test_served.py",
    ),
    "features/capture/patterns.py": (
        "tests/features/capture/test_patterns.py",
        "tests/features/capture/test_redaction.py",
    ),
    "features/capture/redaction.py": (
        "tests/features/capture/test_redaction.py",
        "tests/features/capture/test_patterns.py",
        "tests/features/capture/test_served.py",
    ),
    "features/canary/keyed_test.py": ("tests/features/canary/test_canary.py",),
    "features/canary/sequential.py": ("tests/features/canary/test_sequential.py",),
}
