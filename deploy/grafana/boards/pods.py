"""Pods of ``vllm serve`` with eaglegate inside, without a gateway: docs/pod.md."""

from __future__ import annotations

from panels import Dashboard, Panel, Query

NEEDS_PODS = "Empty where no vllm serve runs eaglegate's scheduler."
RANK = "{{instance}} {{engine}}"


def gauge(title: str, unit: str, name: str, about: str = "", least: float = 0) -> Panel:
    query = Query(f"eaglegate_pod_{name}", RANK)
    return Panel(title, unit, (query,), about, NEEDS_PODS, least=least)


def sum_rate(metric: str, by: str = "") -> str:
    return f"sum{by} (rate(eaglegate_pod_{metric}[$__rate_interval]))"


PODS = Dashboard(
    "eaglegate-pods",
    "eaglegate: pods",
    "What speculation brings in each pod and data-parallel rank.",
    {
        "Pods": (
            gauge("Acceptance length", "none", "acceptance_length", "Of verify steps.", least=1),
            gauge("Depth", "none", "depth", "Drafts that a step makes for each request."),
            gauge("Decode steps without drafts", "percentunit", "fallback_ratio"),
            gauge("Tokens per second of a request", "none", "token_rate"),
            gauge("Seconds of a step", "s", "step_seconds"),
            Panel(
                "Why steps had no drafts",
                "percentunit",
                (
                    Query(
                        f"{sum_rate('undrafted_steps_total', ' by (reason)')} / ignoring(reason)"
                        f" group_left() ({sum_rate('decode_steps_total')} > 0)",
                        "{{reason}}",
                    ),
                ),
                "Of all decode steps.",
                NEEDS_PODS,
                kind="stacked",
            ),
        ),
    },
)
