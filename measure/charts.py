"""Line charts and intervals as inline SVG: nothing to install, nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 34, 46
LEFT_OF_GROUPS = 170
LEGEND_LINE = 12
COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """``low`` and ``high`` draw an interval where they are given."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, 1e-12))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def draw_lines(
    title: str, lines: Sequence[Line], x_label: str, y_label: str, *, log_x: bool = False
) -> str:
    """A chart with a legend; empty where there is no point. The y axis begins at 0."""
    shown = [line for line in lines if line.points]
    if not shown:
        return ""
    xs = sorted({point.x for line in shown for point in line.points})
    top = max(p.y if p.high is None else p.high for line in shown for p in line.points)
    x = _Scale(xs[0], xs[-1], LEFT + 14, WIDTH - RIGHT - 14, log_x)
    names = [line.name for line in shown]
    y = _Scale(0.0, _round_up(top), HEIGHT - BOTTOM, TOP + _legend_height(names))
    parts = [_draw_grid(y), _draw_x_axis(xs, x)]
    for number, line in enumerate(shown):
        parts.append(_draw_line(line, x, y, COLORS[number % len(COLORS)]))
    parts.append(_draw_labels(title, x_label, y_label))
    parts.append(_draw_legend(names))
    return _frame(parts, HEIGHT)


def draw_intervals(title: str, rows: Sequence[tuple[str, Point, str]], x_label: str) -> str:
    """A row per name with its ratio and interval around 1, coloured by class; x is a ratio."""
    shown = [row for row in rows if row[1].x > 0]
    if not shown:
        return ""
    ends = [v for _, p, _ in shown for v in (p.x, p.low, p.high) if v] + [0.95, 1.05]
    height = TOP + 24 * len(shown) + BOTTOM
    left = 200
    x = _Scale(min(ends) * 0.98, max(ends) * 1.02, left, WIDTH - RIGHT, log=True)
    one = x.place(1.0)
    parts = [f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP}" y2="{height - BOTTOM}" class="one"/>']
    for number, (name, point, kind) in enumerate(shown):
        at = TOP + 24 * number + 14
        parts.append(f'<text x="{left - 8}" y="{at + 4}" class="end">{escape(name)}</text>')
        parts.append(_draw_interval(point, x, at, kind))
    parts += [
        f'<text x="{x.place(value):.1f}" y="{height - BOTTOM + 16}" class="mid">'
        f"{value - 1:+.0%}</text>"
        for value in _ratio_ticks(x.low, x.high)
    ]
    parts.append(f'<text x="{left}" y="16" class="title">{escape(title)}</text>')
    parts.append(f'<text x="{left}" y="{height - 8}">{escape(x_label)}</text>')
    return _frame(parts, height)


def draw_groups(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, Point]]]]) -> str:
    """A group of rows per name, a row per series: values ``y`` with intervals, side by side."""
    names = list(dict.fromkeys(series for _, rows in groups for series, _ in rows))
    points = [point for _, rows in groups for _, point in rows]
    if not points:
        return ""
    ends = [end for p in points for end in (p.y, p.low, p.high) if end is not None]
    each = 11 * len(names) + 10
    top = TOP + 20 + _legend_height(names)
    height = top + each * len(groups) + BOTTOM
    x = _Scale(min(ends), max(ends), LEFT_OF_GROUPS, WIDTH - RIGHT - 20)
    parts = [_draw_title(title), _draw_legend(names), _draw_ticks(x, height - BOTTOM + 16)]
    for number, (name, rows) in enumerate(groups):
        at = top + each * number
        parts.append(
            f'<text x="{LEFT_OF_GROUPS - 8}" y="{at + 4}" class="end">{escape(name)}</text>'
        )
        for series, point in rows:
            place = names.index(series)
            color = COLORS[place % len(COLORS)]
            parts.append(_draw_row(f"{name}, {series}", point, x, at + 11 * place, color))
    return _frame(parts, height)


def _draw_row(name: str, point: Point, x: _Scale, at: float, color: str) -> str:
    low = point.y if point.low is None else point.low
    high = point.y if point.high is None else point.high
    return (
        f'<g stroke="{color}" fill="{color}">'
        f"<title>{escape(name)}: {point.y:.4g} ({low:.4g} to {high:.4g})</title>"
        f'<line x1="{x.place(low):.1f}" x2="{x.place(high):.1f}" y1="{at}" y2="{at}"/>'
        f'<circle cx="{x.place(point.y):.1f}" cy="{at}" r="3"/></g>'
    )


def _draw_ticks(x: _Scale, at: float) -> str:
    values = [x.low + (x.high - x.low) * tick / TICKS for tick in range(TICKS + 1)]
    return "".join(
        f'<text x="{x.place(value):.1f}" y="{at:.0f}" class="mid">{value:.3g}</text>'
        for value in values
    )


def _draw_title(title: str) -> str:
    return f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>'


def _ratio_ticks(low: float, high: float) -> list[float]:
    span = max(high - 1, 1 - low)
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 1e9) if span / s <= 3)
    ticks = [1 + step * number for number in range(-3, 4)]
    return [tick for tick in ticks if low <= tick <= high and tick > 0]


def _draw_interval(point: Point, x: _Scale, at: float, kind: str) -> str:
    low, high = point.low or point.x, point.high or point.x
    tip = f"{point.x - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
    return (
        f'<g class="{escape(kind)}"><title>{tip}</title>'
        f'<line x1="{x.place(low):.1f}" x2="{x.place(high):.1f}" y1="{at}" y2="{at}"/>'
        f'<circle cx="{x.place(point.x):.1f}" cy="{at}" r="4"/></g>'
    )


def _draw_line(line: Line, x: _Scale, y: _Scale, color: str) -> str:
    points = sorted(line.points, key=lambda point: point.x)
    path = " ".join(f"{x.place(p.x):.1f},{y.place(p.y):.1f}" for p in points)
    marks = [f'<polyline points="{path}" stroke="{color}"/>']
    for p in points:
        px, py = x.place(p.x), y.place(p.y)
        tip = f"{escape(line.name)}: {p.y:.4g} at {p.x:g}"
        if p.low is not None and p.high is not None:
            tip += f" ({p.low:.4g} to {p.high:.4g})"
            marks.append(
                f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{y.place(p.low):.1f}" '
                f'y2="{y.place(p.high):.1f}" stroke="{color}"/>'
            )
        marks.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{color}"><title>{tip}</title>'
            "</circle>"
        )
    return "".join(marks)


def _draw_grid(y: _Scale) -> str:
    values = [y.high * tick / TICKS for tick in range(TICKS + 1)]
    return "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.place(v):.1f}" y2="{y.place(v):.1f}" '
        f'class="grid"/><text x="{LEFT - 6}" y="{y.place(v) + 4:.1f}" class="end">{v:.4g}</text>'
        for v in values
    )


def _draw_x_axis(xs: Sequence[float], x: _Scale) -> str:
    return "".join(
        f'<text x="{x.place(value):.1f}" y="{HEIGHT - BOTTOM + 16}" class="mid">{value:g}</text>'
        for value in xs[:: max(1, len(xs) // 10)]
    )


def _draw_labels(title: str, x_label: str, y_label: str) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return (
        f"{_draw_title(title)}"
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 10}" class="mid">{escape(x_label)}</text>'
        f'<text x="14" y="{middle}" class="mid" transform="rotate(-90 14 {middle})">'
        f"{escape(y_label)}</text>"
    )


def _place_legend(names: Sequence[str]) -> list[tuple[float, int]]:
    """Where each name begins, and in which line of the legend."""
    places: list[tuple[float, int]] = []
    at, line = float(LEFT + 6), 0
    for name in names:
        width = 26 + 6.5 * len(name)
        if places and at + width > WIDTH:
            at, line = float(LEFT + 6), line + 1
        places.append((at, line))
        at += width
    return places


def _legend_height(names: Sequence[str]) -> int:
    """Of the lines after the first."""
    return LEGEND_LINE * _place_legend(names)[-1][1]


def _draw_legend(names: Sequence[str]) -> str:
    out = []
    for number, (name, (at, line)) in enumerate(zip(names, _place_legend(names), strict=True)):
        color, y = COLORS[number % len(COLORS)], 24 + LEGEND_LINE * line
        out.append(f'<rect x="{at:.0f}" y="{y}" width="10" height="4" fill="{color}"/>')
        out.append(f'<text x="{at + 14:.0f}" y="{y + 6}">{escape(name)}</text>')
    return "".join(out)


def _frame(parts: Sequence[str], height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * unit >= value)
