"""The service as its users met it."""

from __future__ import annotations

from panels import (
    NEEDS_DRAFT,
    NEEDS_TROUBLE,
    OF,
    PER_WORKLOAD,
    Dashboard,
    Panel,
    Query,
    over,
    percentiles,
    quantile,
    rate,
)

ENDED = rate("requests_total")
FAILED = rate("requests_total", ',outcome=~"engine|timeout|error"')

OVERVIEW = Dashboard(
    "eaglegate-overview",
    "eaglegate: overview",
    "Is the service well, and does speculation pay?",
    {
        "Now": (
            Panel("Requests", "reqps", (Query(f"sum({ENDED})"),), kind="number", width=4),
            Panel(
                "Output",
                "short",
                (Query(f"sum({rate('completion_tokens_total')})"),),
                "Tokens per second over all requests.",
                kind="number",
                width=4,
            ),
            Panel(
                "Failed",
                "percentunit",
                (Query(over(f"(sum({FAILED}) or vector(0))", f"sum({ENDED})")),),
                "Requests the engine or the gateway failed, of those that ended.",
                kind="number",
                width=4,
            ),
            Panel(
                "Acceptance length",
                "none",
                (
                    Query(
                        "1 + "
                        + over(
                            f"sum({rate('accepted_tokens_total')})",
                            f"sum({rate('verify_steps_total')})",
                        )
                    ),
                ),
                "Tokens per verify step, bonus included, pooled over all requests.",
                NEEDS_DRAFT,
                kind="number",
                width=4,
                least=None,
            ),
            Panel(
                "Fallback ratio",
                "percentunit",
                (
                    Query(
                        over(
                            f"""sum({rate("decode_steps_total", ',outcome!="accepted"')})""",
                            f"sum({rate('decode_steps_total')})",
                        )
                    ),
                ),
                "Decode steps that advanced on the target's plain path.",
                kind="number",
                width=4,
            ),
            Panel(
                "TPOT p95",
                "s",
                (Query(quantile(0.95, "time_per_output_token_seconds")),),
                kind="number",
                width=4,
            ),
        ),
        "Traffic": (
            Panel(
                "Requests by outcome",
                "reqps",
                (Query(f"sum by (outcome) ({ENDED})", "{{outcome}}"),),
                kind="stacked",
            ),
            Panel(
                "Running",
                "short",
                (Query(f"sum by (workload) (eaglegate_requests_running{{{OF}}})", "{{workload}}"),),
                kind="stacked",
            ),
            Panel(
                "Output tokens per second",
                "short",
                (Query(f"{PER_WORKLOAD} ({rate('completion_tokens_total')})", "{{workload}}"),),
                kind="stacked",
            ),
            Panel(
                "Turned away",
                "reqps",
                (
                    Query(
                        "sum by (code) (rate(eaglegate_requests_refused_total[$__rate_interval]))",
                        "{{code}}",
                    ),
                ),
                "By the error code the client got.",
                NEEDS_TROUBLE,
                kind="stacked",
            ),
            Panel(
                "Streams interrupted",
                "reqps",
                (Query(f"sum by (reason) ({rate('streams_interrupted_total')})", "{{reason}}"),),
                "After their first token.",
                NEEDS_TROUBLE,
                kind="stacked",
            ),
            Panel(
                "Input tokens per second",
                "short",
                (
                    Query(f"sum({rate('prompt_tokens_total')})", "prompt"),
                    Query(f"sum({rate('cached_tokens_total')})", "of which cached"),
                ),
            ),
        ),
        "Latency": (
            Panel(
                "Time to first token",
                "s",
                percentiles("time_to_first_token_seconds", 0.5, 0.95, 0.99),
                "First output token (reasoning counts) - arrival.",
            ),
            Panel(
                "Time per output token",
                "s",
                percentiles("time_per_output_token_seconds", 0.5, 0.95, 0.99),
                "(End - first token) / (N - 1), per choice.",
            ),
            Panel(
                "Speed one reader gets",
                "short",
                (
                    Query(quantile(0.5, "user_tokens_per_second"), "median"),
                    Query(quantile(0.1, "user_tokens_per_second"), "slowest tenth"),
                ),
                "1 / TPOT, in tokens per second.",
            ),
            Panel(
                "Queue",
                "short",
                (
                    Query("sum(eaglegate_queue_requests)", "requests waiting"),
                    Query("sum(eaglegate_engine_sequences)", "choices in the engine"),
                ),
                "In front of the engine; its bounds are eaglegate_admission_limit.",
                width=6,
            ),
            Panel(
                "Request duration", "s", percentiles("request_duration_seconds", 0.5, 0.95), width=6
            ),
            Panel("Wait for admission", "s", percentiles("queue_seconds", 0.5, 0.95), width=6),
            Panel(
                "Objectives missed",
                "percentunit",
                (
                    Query("eaglegate:ttft_misses:1h", "first token over 1 s"),
                    Query("eaglegate:tpot_misses:1h", "over 50 ms per token"),
                ),
                "Over the last hour; the objectives are in deploy/prometheus/rules.",
                width=6,
            ),
        ),
    },
)
