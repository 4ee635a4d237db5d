"""The workers of a fleet beside one another."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, over

NEEDS_FLEET = "Empty where the engine is not a fleet of remote workers."
NEEDS_COUNTERS = "Empty for workers that do not speculate or do not report it."
PER_WORKER = "sum by (worker)"


def worker_rate(metric: str, more: str = "") -> str:
    return f"rate(eaglegate_worker_{metric}{{{more}}}[$__rate_interval])"


def per_worker(metric: str) -> str:
    return f"{PER_WORKER} ({worker_rate(metric)})"


BY_PREFIX = worker_rate("requests_total", 'why=~"session|prefix"')
OPENINGS = "increase(eaglegate_worker_openings_total[$__rate_interval])"
ACCEPTANCE = over(per_worker("accepted_tokens_total"), per_worker("verify_steps_total"))

WORKERS = Dashboard(
    "eaglegate-workers",
    "eaglegate: workers",
    "Which worker does what, who is away, and does affinity hold?",
    {
        "State": (
            Panel(
                "Workers by state",
                "short",
                (
                    Query(
                        "sum by (state) (max by (worker, state) (eaglegate_worker_state))",
                        "{{state}}",
                    ),
                ),
                "As any gateway sees them.",
                NEEDS_FLEET,
            ),
            Panel(
                "Circuits opened",
                "short",
                (
                    Query(
                        f"{PER_WORKER} ({OPENINGS})",
                        "{{worker}}",
                    ),
                ),
                "A worker whose circuit is open gets no requests until a probe succeeds.",
                NEEDS_FLEET,
            ),
            Panel(
                "Requests that moved",
                "reqps",
                (
                    Query(
                        f"sum by (how) ({worker_rate('moved_requests_total')})",
                        "{{how}}",
                    ),
                ),
                "Retried before their first token, or continued after it, in another worker.",
                NEEDS_FLEET,
            ),
        ),
        "Load": (
            Panel(
                "Tokens",
                "short",
                (Query(per_worker("tokens_total"), "{{worker}}"),),
                "Output tokens a second.",
                NEEDS_FLEET,
                kind="stacked",
            ),
            Panel(
                "Outstanding tokens",
                "short",
                (Query(f"{PER_WORKER} (eaglegate_worker_outstanding_tokens)", "{{worker}}"),),
                "What balancing evens out: prompts to prefill and answers as expected.",
                NEEDS_FLEET,
            ),
            Panel(
                "Requests running",
                "short",
                (Query(f"{PER_WORKER} (eaglegate_worker_requests_running)", "{{worker}}"),),
                "",
                NEEDS_FLEET,
            ),
        ),
        "Worth": (
            Panel(
                "Sent where the prefix is",
                "percentunit",
                (
                    Query(
                        over(f"sum({BY_PREFIX})", f"sum({worker_rate('requests_total')})"),
                        "share",
                    ),
                ),
                "Requests that a session or a known prefix sent to their worker.",
                NEEDS_FLEET,
            ),
            Panel(
                "What decided",
                "reqps",
                (Query(f"sum by (why) ({worker_rate('requests_total')})", "{{why}}"),),
                "",
                NEEDS_FLEET,
                kind="stacked",
            ),
            Panel(
                "Acceptance length",
                "short",
                (Query(f"1 + {ACCEPTANCE}", "{{worker}}"),),
                "From each worker's own counters.",
                NEEDS_COUNTERS,
                least=1,
            ),
        ),
    },
)
