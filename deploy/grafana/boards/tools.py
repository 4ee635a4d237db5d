"""Cost and outcomes of tool calls."""

from __future__ import annotations

from panels import (
    NEEDS_TOOLS,
    PER_WORKLOAD,
    Dashboard,
    Panel,
    Query,
    acceptance,
    over,
    quantile,
    rate,
    tpot,
)

IN_CALLS = ',phase="tool_call"'
TOOLS = Dashboard(
    "eaglegate-tools",
    "eaglegate: tools",
    "Do agents get usable tool calls, and how fast?",
    {
        "Outcome": (
            Panel(
                "Tool calls by outcome",
                "reqps",
                (Query(f"sum by (outcome) ({rate('tool_calls_total')})", "{{outcome}}"),),
                "Malformed and truncated point to parser or length limit, the others to the model.",
                NEEDS_TOOLS,
                kind="stacked",
                width=12,
            ),
            Panel(
                "Unusable",
                "percentunit",
                (Query("eaglegate:tool_call_failure_ratio:15m", "{{lane}}"),),
                "Over 15 minutes.",
                NEEDS_TOOLS,
                width=12,
            ),
        ),
        "Inside the calls": (
            Panel(
                "Acceptance length",
                "none",
                (
                    Query(acceptance("phase", "phase_", IN_CALLS), "tool calls"),
                    Query(acceptance("phase", "phase_", ',phase="content"'), "content"),
                ),
                "Drafts are at their worst at the boundary of a call.",
                NEEDS_TOOLS,
                least=1,
            ),
            Panel(
                "TPOT",
                "s",
                (Query(tpot("phase", "phase_", IN_CALLS), "tool calls"),),
                "",
                NEEDS_TOOLS,
            ),
            Panel(
                "Tokens per second",
                "short",
                (Query(f"sum({rate('phase_decode_tokens_total', IN_CALLS)})", "tool calls"),),
                "",
                NEEDS_TOOLS,
            ),
        ),
        "Requests with tools": (
            Panel(
                "By outcome",
                "reqps",
                (
                    Query(
                        f"""sum by (outcome) ({rate("requests_total", ',workload="tools"')})""",
                        "{{outcome}}",
                    ),
                ),
                "",
                NEEDS_TOOLS,
                kind="stacked",
            ),
            Panel(
                "Time to first token",
                "s",
                (
                    Query(
                        quantile(0.95, "time_to_first_token_seconds", more=',workload="tools"'),
                        "p95",
                    ),
                ),
                "",
                NEEDS_TOOLS,
            ),
            Panel(
                "Reasoning tokens",
                "percentunit",
                (
                    Query(
                        over(
                            f"{PER_WORKLOAD} ({rate('reasoning_tokens_total')})",
                            f"{PER_WORKLOAD} ({rate('completion_tokens_total')})",
                        ),
                        "{{workload}}",
                    ),
                ),
                "Share of the output.",
            ),
        ),
    },
)
