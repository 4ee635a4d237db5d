"""Gain of speculation."""

from __future__ import annotations

from panels import (
    NEEDS_DRAFT,
    NEEDS_PLANNER,
    OF,
    Annotation,
    Dashboard,
    Panel,
    Query,
    acceptance,
    fallback,
    over,
    percentiles,
    rate,
    tpot,
)

FELL_BACK = rate("decode_steps_total", ',outcome!="accepted"')

SPECULATION = Dashboard(
    "eaglegate-speculation",
    "eaglegate: speculation",
    "Where drafts pay and where they do not: by workload, phase, context and template.",
    {
        "Acceptance": (
            Panel(
                "Acceptance length by workload",
                "none",
                (Query(acceptance("workload"), "{{workload}}"),),
                "1 + A / D, pooled.",
                NEEDS_DRAFT,
                least=1,
            ),
            Panel(
                "Against the trailing baseline",
                "percentunit",
                (
                    Query(
                        f"eaglegate_acceptance_length{{{OF}}}"
                        f" / eaglegate_acceptance_length_baseline{{{OF}}}",
                        "{{lane}} {{workload}}",
                    ),
                ),
                "Of the last minutes, over what it was before them. 100 % is no change.",
                "Empty until the gateway has run longer than its window (5 minutes by default).",
            ),
            Panel(
                "Acceptance length of requests",
                "none",
                percentiles("request_acceptance_length", 0.1, 0.5, 0.9),
                "One value per choice. Very low may mean garbled output, very high a repetition.",
                NEEDS_DRAFT,
                least=1,
            ),
            Panel(
                "Accepted at each position",
                "percentunit",
                (
                    Query(
                        over(
                            f"sum by (position) ({rate('accepted_at_total')})",
                            f"sum by (position) ({rate('drafted_at_total')})",
                        ),
                        "position {{position}}",
                    ),
                ),
                "Of the steps that drafted this position.",
                NEEDS_DRAFT,
            ),
            Panel(
                "Accepted, given the position before",
                "percentunit",
                (
                    Query(
                        f"avg by (position) (eaglegate_conditional_acceptance{{{OF}}})",
                        "position {{position}}",
                    ),
                ),
                "c_i = A_i / A_(i-1). Lines that fan out downwards are a sign of attention drift.",
                NEEDS_DRAFT,
            ),
            Panel(
                "Draft tokens",
                "short",
                (
                    Query(f"sum({rate('drafted_tokens_total')})", "proposed"),
                    Query(f"sum({rate('accepted_tokens_total')})", "accepted"),
                    Query(f"sum({rate('cut_tokens_total')})", "accepted, then cut"),
                ),
                "Per second. What lies between proposed and accepted is work for nothing.",
                NEEDS_DRAFT,
            ),
        ),
        "Fallback": (
            Panel(
                "Decode steps by outcome",
                "short",
                (Query(f"sum by (outcome) ({rate('decode_steps_total')})", "{{outcome}}"),),
                "Per second.",
                kind="stacked",
            ),
            Panel(
                "Fallback ratio by reason",
                "percentunit",
                (
                    Query(
                        f"sum by (outcome) ({FELL_BACK})"
                        " / on () group_left () "
                        f"(sum({rate('decode_steps_total')}) > 0)",
                        "{{outcome}}",
                    ),
                ),
                "Rejected: the draft was wrong. Undrafted: the engine proposed nothing. "
                "Off: switched off on purpose.",
                "A reason that never occurred has no line.",
                kind="stacked",
            ),
            Panel(
                "Fallback ratio by phase",
                "percentunit",
                (Query(fallback("phase", "phase_"), "{{phase}}"),),
            ),
        ),
        "Slices": (
            Panel(
                "Acceptance length by phase",
                "none",
                (Query(acceptance("phase", "phase_"), "{{phase}}"),),
                "Each verify step belongs to the phase in which its tokens came out.",
                NEEDS_DRAFT,
                least=1,
            ),
            Panel(
                "Acceptance length by context",
                "none",
                (Query(acceptance("context", "context_"), "{{context}}"),),
                "By prompt length in tokens.",
                NEEDS_DRAFT,
                least=1,
            ),
            Panel(
                "Acceptance length by template",
                "none",
                (Query(acceptance("template", "template_"), "{{template}}"),),
                "Fingerprint of system prompt and tool schemas; the most frequent by name.",
                NEEDS_DRAFT,
                least=1,
            ),
            Panel("TPOT by phase", "s", (Query(tpot("phase", "phase_"), "{{phase}}"),)),
            Panel("TPOT by context", "s", (Query(tpot("context", "context_"), "{{context}}"),)),
            Panel("TPOT by template", "s", (Query(tpot("template", "template_"), "{{template}}"),)),
        ),
        "Depth planner": (
            Panel(
                "Steps by depth",
                "percentunit",
                (
                    Query(
                        "sum by (depth) (rate(eaglegate_planner_steps_total[$__rate_interval]))"
                        " / on () group_left () "
                        "(sum(rate(eaglegate_planner_steps_total[$__rate_interval])) > 0)",
                        "depth {{depth}}",
                    ),
                ),
                "Share of the planned steps.",
                NEEDS_PLANNER,
                kind="stacked",
            ),
            Panel(
                "Steps by reason",
                "short",
                (
                    Query(
                        "sum by (reason) "
                        "(rate(eaglegate_planner_decisions_total[$__rate_interval]))",
                        "{{reason}}",
                    ),
                ),
                "Per second. Probes learn, drift is acceptance that falls with the position.",
                NEEDS_PLANNER,
                kind="stacked",
            ),
            Panel(
                "Expected over real",
                "percentunit",
                (
                    Query("eaglegate:planner_token_calibration:15m", "tokens"),
                    Query("eaglegate:planner_time_calibration:15m", "time"),
                ),
                "100 % is right.",
                NEEDS_PLANNER,
            ),
            Panel(
                "Estimated regret",
                "percentunit",
                (Query("eaglegate:planner_regret:1h", "against the best fixed depth"),),
                "Below 0 planning is ahead, by the planner's own model of time and acceptance.",
                NEEDS_PLANNER,
                width=12,
                least=None,
            ),
            Panel(
                "Time spent planning",
                "percentunit",
                (
                    Query(
                        over(
                            "rate(eaglegate_planner_planning_seconds_total[$__rate_interval])",
                            "rate(eaglegate_planner_step_seconds_total[$__rate_interval])",
                        ),
                        "of step time",
                    ),
                ),
                "",
                NEEDS_PLANNER,
                width=12,
            ),
        ),
        "Steps": (
            Panel(
                "Time between steps",
                "s",
                percentiles("inter_step_seconds", 0.5, 0.95, 0.99),
                "Not TPOT: a step brings as many tokens as the acceptance length says.",
                width=12,
            ),
            Panel(
                "Our account and the engine's",
                "short",
                (
                    Query(
                        "sum(rate(eaglegate_accepted_tokens_total[$__rate_interval])) + "
                        "sum(rate(eaglegate_cut_tokens_total[$__rate_interval]))",
                        "eaglegate",
                    ),
                    Query(
                        "sum(rate(vllm:spec_decode_num_accepted_tokens_total[$__rate_interval]))",
                        "vLLM",
                    ),
                ),
                "Accepted draft tokens per second, counted twice: the lines lie on each other.",
                NEEDS_DRAFT,
                width=12,
            ),
        ),
    },
    (
        Annotation("Canary ended", "increase(eaglegate_canaries_total[1m]) > 0", "green"),
        Annotation(
            "Draft changed",
            'increase(eaglegate_draft_swaps_total{kind=~"swap|restart"}[1m]) > 0',
            "blue",
        ),
    ),
)
