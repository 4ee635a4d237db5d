"""Line charts and interval charts as inline SVG, without packages or downloads."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 38, 46
LETTER = 6.2
"""Width of a letter."""
LINE = 13
"""Height of a line of text."""
LABEL = 24
"""Most letters in a line of a label left of a chart. Longer labels are wrapped."""
LEFT_OF_ROWS = 160
FULL = int((WIDTH - 16) / LETTER)
"""Most letters in a line as wide as a chart."""
FULL_TITLE = int((WIDTH - 16) / 8.2)
"""Most letters in a line of a title, which is larger and bold."""
COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#475569")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """Point of a chart, with an interval if ``low`` and ``high`` are given."""

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
        low, high, position = self.low, self.high, value
        if self.log:
            low, high, position = math.log(low), math.log(high), math.log(max(value, 1e-12))
        share = (position - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def draw_lines(
    title: str, lines: Sequence[Line], x_label: str, y_label: str, *, log_x: bool = False
) -> str:
    """Draw a chart with a legend; empty without points. The y axis begins at 0."""
    visible_lines = [line for line in lines if line.points]
    if not visible_lines:
        return ""
    xs = sorted({point.x for line in visible_lines for point in line.points})
    top = max(p.y if p.high is None else p.high for line in visible_lines for p in line.points)
    x = _Scale(xs[0], xs[-1], LEFT + 14, WIDTH - RIGHT - 14, log_x)
    names = [line.name for line in visible_lines]
    titles = wrap(title, FULL_TITLE)
    title_height = LINE * (len(titles) - 1)
    height = HEIGHT + title_height + _legend_height(names)
    y = _Scale(0.0, _round_up(top), height - BOTTOM, TOP + title_height + _legend_height(names))
    parts = [_draw_grid(y), _draw_x_axis(xs, x, height)]
    for number, line in enumerate(visible_lines):
        parts.append(_draw_line(line, x, y, COLORS[number % len(COLORS)]))
    parts.append(_draw_text(titles, 8, 16, "title"))
    parts.append(_draw_axis_names(x_label, y_label, y, height))
    parts.append(_draw_legend(names, 16 + LINE * len(titles)))
    return _frame(parts, height)


def draw_intervals(title: str, rows: Sequence[tuple[str, Point, str]], x_label: str) -> str:
    """Draw a row per name with its ratio and interval around 1, coloured by class."""
    visible_rows = [row for row in rows if row[1].x > 0]
    if not visible_rows:
        return ""
    limits = [v for _, p, _ in visible_rows for v in (p.x, p.low, p.high) if v] + [0.95, 1.05]
    labels = [wrap(name, LABEL) for name, _, _ in visible_rows]
    captions, titles = wrap(x_label, FULL), wrap(title, FULL_TITLE)
    top = 22 + LINE * len(titles)
    foot = top + sum(_row_height(label) for label in labels)
    x = _Scale(min(limits) * 0.98, max(limits) * 1.02, LEFT_OF_ROWS, WIDTH - RIGHT - 10, log=True)
    origin = x.place(1.0)
    parts = [f'<line x1="{origin:.1f}" x2="{origin:.1f}" y1="{top - 8}" y2="{foot}" class="one"/>']
    offset = float(top)
    for (_, point, kind), label in zip(visible_rows, labels, strict=True):
        center = offset + _row_height(label) / 2
        parts.append(_draw_label(label, center))
        parts.append(_draw_interval(point, x, center, kind))
        offset += _row_height(label)
    parts += [
        f'<text x="{x.place(value):.1f}" y="{foot + 16}" class="mid">{value - 1:+.0%}</text>'
        for value in _ratio_ticks(x.low, x.high)
    ]
    parts.append(_draw_text(titles, 8, 16, "title"))
    parts.append(_draw_text(captions, 8, foot + 36, ""))
    return _frame(parts, foot + 36 + LINE * len(captions))


def draw_groups(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, Point]]]]) -> str:
    """Draw a group of rows per name and a row per series, with values and intervals."""
    names = list(dict.fromkeys(series for _, rows in groups for series, _ in rows))
    points = [point for _, rows in groups for _, point in rows]
    if not points:
        return ""
    limits = [end for p in points for end in (p.y, p.low, p.high) if end is not None]
    labels = [wrap(name, LABEL) for name, _ in groups]
    titles = wrap(title, FULL_TITLE)
    top = 16 + LINE * len(titles)
    legend = _draw_legend(names, top)
    offset = float(top + 18 + _legend_height(names))
    heights = [max(11 * len(names) + 10, _row_height(label)) for label in labels]
    foot = offset + sum(heights)
    x = _Scale(min(limits), max(limits), LEFT_OF_ROWS, WIDTH - RIGHT - 20)
    parts = [_draw_text(titles, 8, 16, "title"), legend, _draw_ticks(x, foot + 16)]
    for (name, rows), label, height in zip(groups, labels, heights, strict=True):
        parts.append(_draw_label(label, offset + height / 2))
        for series, point in rows:
            place = names.index(series)
            color = COLORS[place % len(COLORS)]
            row_center = offset + height / 2 + 11 * (place - (len(names) - 1) / 2)
            parts.append(_draw_row(f"{name}, {series}", point, x, row_center, color))
        offset += height
    return _frame(parts, foot + 24)


def wrap(text: str, letters: int) -> list[str]:
    """Split text into lines of at most ``letters`` letters, at spaces if possible."""
    return textwrap.wrap(text, letters, break_on_hyphens=False) or [""]


def _row_height(label: Sequence[str]) -> int:
    return max(24, LINE * len(label) + 6)


def _draw_label(lines: Sequence[str], center: float) -> str:
    """Draw a label left of a row, vertically centred at ``center``."""
    start = center + 4 - LINE * (len(lines) - 1) / 2
    return _draw_text(lines, LEFT_OF_ROWS - 8, start, "end")


def _draw_text(lines: Sequence[str], x: float, y: float, kind: str) -> str:
    return "".join(
        f'<text x="{x:.0f}" y="{y + LINE * number:.1f}" class="{kind}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )


def _draw_row(name: str, point: Point, x: _Scale, y: float, color: str) -> str:
    low = point.y if point.low is None else point.low
    high = point.y if point.high is None else point.high
    return (
        f'<g stroke="{color}" fill="{color}">'
        f"<title>{escape(name)}: {point.y:.4g} ({low:.4g} to {high:.4g})</title>"
        f'<line x1="{x.place(low):.1f}" x2="{x.place(high):.1f}" y1="{y}" y2="{y}"/>'
        f'<circle cx="{x.place(point.y):.1f}" cy="{y}" r="3"/></g>'
    )


def _draw_ticks(x: _Scale, y: float) -> str:
    values = [x.low + (x.high - x.low) * tick / TICKS for tick in range(TICKS + 1)]
    return "".join(
        f'<text x="{x.place(value):.1f}" y="{y:.0f}" class="mid">{value:.3g}</text>'
        for value in values
    )


def _ratio_ticks(low: float, high: float) -> list[float]:
    span = max(high - 1, 1 - low)
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 1e9) if span / s <= 3)
    ticks = [1 + step * number for number in range(-3, 4)]
    return [tick for tick in ticks if low <= tick <= high and tick > 0]


def _draw_interval(point: Point, x: _Scale, y: float, kind: str) -> str:
    low, high = point.low or point.x, point.high or point.x
    tip = f"{point.x - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
    return (
        f'<g class="{escape(kind)}"><title>{tip}</title>'
        f'<line x1="{x.place(low):.1f}" x2="{x.place(high):.1f}" y1="{y}" y2="{y}"/>'
        f'<circle cx="{x.place(point.x):.1f}" cy="{y}" r="4"/></g>'
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


def _draw_x_axis(xs: Sequence[float], x: _Scale, height: float) -> str:
    return "".join(
        f'<text x="{x.place(value):.1f}" y="{height - BOTTOM + 16}" class="mid">{value:g}</text>'
        for value in xs[:: max(1, len(xs) // 10)]
    )


def _draw_axis_names(x_label: str, y_label: str, y: _Scale, height: float) -> str:
    center = (y.start + y.end) / 2
    return (
        f'<text x="{(LEFT + WIDTH) / 2}" y="{height - 10}" class="mid">{escape(x_label)}</text>'
        f'<text x="12" y="{center}" class="mid" transform="rotate(-90 12 {center})">'
        f"{escape(y_label)}</text>"
    )


def _place_legend(names: Sequence[str]) -> list[tuple[float, int, list[str]]]:
    """Return each name's place in the legend: its x, its first line, and its wrapped lines."""
    places: list[tuple[float, int, list[str]]] = []
    x, line, lines = 8.0, 0, 1
    for name in names:
        label = wrap(name, FULL - 4)
        width = 24 + LETTER * max(map(len, label))
        if places and x + width > WIDTH:
            x, line = 8.0, line + lines
            lines = 1
        lines = max(lines, len(label))
        places.append((x, line, label))
        x += width
    return places


def _legend_height(names: Sequence[str]) -> int:
    """Return the height of all lines after the first."""
    return LINE * (max(line + len(label) for _, line, label in _place_legend(names)) - 1)


def _draw_legend(names: Sequence[str], top: float) -> str:
    out = []
    for number, (x, line, label) in enumerate(_place_legend(names)):
        color, y = COLORS[number % len(COLORS)], top + LINE * line
        out.append(f'<rect x="{x:.0f}" y="{y - 6}" width="10" height="4" fill="{color}"/>')
        out.append(_draw_text(label, x + 14, y, ""))
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
