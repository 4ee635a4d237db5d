"""Line charts and rows of intervals as inline SVG in a figure, without packages or downloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 46
NAME_HEIGHT, ROW_HEIGHT = 20, 11
COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """Point of a chart, with an interval if ``low`` and ``high`` are given."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        return (
            self.y if self.low is None else self.low,
            self.y if self.high is None else self.high,
        )


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

    def place(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [self.low + (self.high - self.low) * tick / TICKS for tick in range(TICKS + 1)]


def draw_lines(title: str, lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Draw a chart with a legend; empty without points. The y axis begins at 0."""
    visible_lines = [line for line in lines if line.points]
    if not visible_lines:
        return ""
    xs = sorted({point.x for line in visible_lines for point in line.points})
    top = max(point.ends[1] for line in visible_lines for point in line.points)
    x = _Scale(xs[0], xs[-1], LEFT + 14, WIDTH - RIGHT - 14)
    y = _Scale(0.0, _round_up(top), HEIGHT - BOTTOM, TOP)
    parts = [_draw_grid(y)]
    parts += [
        _draw_text(x.place(value), HEIGHT - BOTTOM + 16, f"{value:g}", "mid")
        for value in xs[:: max(1, len(xs) // 10)]
    ]
    parts += [
        _draw_line(line, x, y, COLORS[number % len(COLORS)])
        for number, line in enumerate(visible_lines)
    ]
    parts.append(_draw_text((LEFT + WIDTH) / 2, HEIGHT - 10, x_label, "mid"))
    center = (y.start + y.end) / 2
    turn = f'transform="rotate(-90 12 {center})"'
    parts.append(f'<text x="12" y="{center}" class="mid" {turn}>{escape(y_label)}</text>')
    return _frame(title, [line.name for line in visible_lines], parts, HEIGHT)


def draw_groups(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, Point]]]]) -> str:
    """Draw a group of rows per name and a row per series, with values and intervals."""
    names = list(dict.fromkeys(series for _, rows in groups for series, _ in rows))
    limits = [end for _, rows in groups for _, point in rows for end in point.ends]
    if not limits:
        return ""
    x = _Scale(min(limits), max(limits), 20, WIDTH - RIGHT - 20)
    colors = {series: COLORS[number % len(COLORS)] for number, series in enumerate(names)}
    parts, y = [], 0.0
    for name, rows in groups:
        parts.append(_draw_text(8, y + NAME_HEIGHT - 6, name, ""))
        y += NAME_HEIGHT
        for series, point in rows:
            (low, high), color = point.ends, colors[series]
            tip = f"{name}, {series}: {point.y:.4g} ({low:.4g} to {high:.4g})"
            parts.append(
                f'<g stroke="{color}" fill="{color}"><title>{escape(tip)}</title>'
                f'<line x1="{x.place(low):.1f}" x2="{x.place(high):.1f}" y1="{y}" y2="{y}"/>'
                f'<circle cx="{x.place(point.y):.1f}" cy="{y}" r="3"/></g>'
            )
            y += ROW_HEIGHT
    parts += [_draw_text(x.place(value), y + 16, f"{value:.3g}", "mid") for value in x.ticks()]
    return _frame(title, names, parts, y + 24)


def _draw_text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _draw_line(line: Line, x: _Scale, y: _Scale, color: str) -> str:
    points = sorted(line.points, key=lambda point: point.x)
    path = " ".join(f"{x.place(p.x):.1f},{y.place(p.y):.1f}" for p in points)
    marks = [f'<polyline points="{path}" stroke="{color}"/>']
    for point in points:
        px, (low, high) = x.place(point.x), point.ends
        tip = f"{line.name}: {point.y:.4g} ({low:.4g} to {high:.4g}) at {point.x:g}"
        marks.append(
            f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{y.place(low):.1f}" y2="{y.place(high):.1f}" '
            f'stroke="{color}"/><circle cx="{px:.1f}" cy="{y.place(point.y):.1f}" r="3.5" '
            f'fill="{color}"><title>{escape(tip)}</title></circle>'
        )
    return "".join(marks)


def _draw_grid(y: _Scale) -> str:
    return "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y.place(value):.1f}" '
        f'y2="{y.place(value):.1f}" class="grid"/>'
        + _draw_text(LEFT - 6, y.place(value) + 4, f"{value:.4g}", "end")
        for value in y.ticks()
    )


def _frame(title: str, names: Sequence[str], parts: Sequence[str], height: float) -> str:
    """Frame the parts with a caption; the browser wraps its title and its legend of ``names``."""
    legend = "".join(
        f'<span style="color:{COLORS[number % len(COLORS)]}">&#9632;</span> {escape(name)} '
        for number, name in enumerate(names)
    )
    return (
        f"<figure><figcaption><b>{escape(title)}</b><br>{legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg></figure>"
    )


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * unit >= value)
