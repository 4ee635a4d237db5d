"""Words for dashboards: panels as data, and the queries they are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

OF = 'model=~"$model",lane=~"$lane"'
"""Selects what the reader chose at the top of the page."""
PER_WORKLOAD = "sum by (workload)"


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """``conditional`` says when a panel is rightly empty; it ends up in the description."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    about: str = ""
    conditional: str = ""
    kind: str = "lines"
    """lines, stacked or number."""
    width: int = 8
    """Width in columns, of 24."""
    least: float | None = 0


@dataclass(frozen=True)
class Annotation:
    """A line across all panels where ``expr`` has a value: Grafana asks once a minute."""

    name: str
    expr: str
    colour: str


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    about: str
    rows: dict[str, tuple[Panel, ...]] = field(default_factory=dict)
    annotations: tuple[Annotation, ...] = ()


def rate(metric: str, more: str = "", window: str = "$__rate_interval") -> str:
    return f"rate(eaglegate_{metric}{{{OF}{more}}}[{window}])"


def quantile(q: float, metric: str, by: str = "", more: str = "") -> str:
    return f"histogram_quantile({q}, sum by (le{by}) ({rate(metric + '_bucket', more)}))"


def over(part: str, whole: str) -> str:
    """A ratio that is absent rather than NaN when there is nothing to divide by."""
    return f"{part} / ({whole} > 0)"


def acceptance(by: str, prefix: str = "", more: str = "") -> str:
    part = f"sum by ({by}) ({rate(prefix + 'accepted_tokens_total', more)})"
    return "1 + " + over(part, f"sum by ({by}) ({rate(prefix + 'verify_steps_total', more)})")


def fallback(by: str, prefix: str) -> str:
    part = f"sum by ({by}) ({rate(prefix + 'fallback_steps_total')})"
    return over(part, f"sum by ({by}) ({rate(prefix + 'decode_steps_total')})")


def tpot(by: str, prefix: str, more: str = "") -> str:
    part = f"sum by ({by}) ({rate(prefix + 'decode_seconds_total', more)})"
    return over(part, f"sum by ({by}) ({rate(prefix + 'decode_tokens_total', more)})")


def percentiles(metric: str, *quantiles: float) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, metric), f"p{round(100 * q)}") for q in quantiles)


NEEDS_PLANNER = "Empty where the depth is fixed."
NEEDS_DRAFT = (
    "Empty while nothing is speculated: there is no acceptance then, not an acceptance of 0."
)
NEEDS_TOOLS = "Empty until a tool call was made."
NEEDS_TROUBLE = "Empty while nothing of the kind happened."
NEEDS_LOSS = "Empty while no engine was lost."
NEEDS_GPU = "Empty on a machine without NVIDIA GPUs."
