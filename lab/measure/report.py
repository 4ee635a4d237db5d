"""Reports: conclusion, notes and sections as JSON, text, and one self-contained HTML page."""

from __future__ import annotations

import os
import platform
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import orjson

from eaglegate import __version__
from eaglegate.lab.measure.charts import Point
from eaglegate.lab.measure.statistics import Estimate, Verdict

SECRET_FLAGS = ("--header", "--api-key", "--capture-key", "--key")
STYLE = """
:root { color-scheme: light dark; --soft: #8886; --better: #047857; --worse: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --better: #34d399; --worse: #f87171; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; }
body { padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.conclusion { border: 1px solid var(--soft); border-left: 6px solid; border-radius: 6px; }
.conclusion { padding: .2rem 1rem; } .conclusion p { margin: .5rem 0; color: CanvasText; }
.conclusion p:first-child { font-size: 1.15rem; font-weight: 600; }
table { border-collapse: collapse; margin: .6rem 0; display: block; overflow-x: auto; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid var(--soft); text-align: right; }
td, th { overflow-wrap: normal; }
td:first-child, th:first-child, td.text, th.text { text-align: left; }
pre { background: #8882; border-radius: 4px; padding: .6rem; white-space: pre-wrap; }
.charts { display: grid; gap: 1rem; }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
svg { width: 100%; max-width: 560px; } svg text { font-size: 11px; fill: currentColor; }
figure { margin: 0; } figcaption { font-size: 13px; } svg .mid { text-anchor: middle; }
svg .end { text-anchor: end; } svg .grid { stroke: var(--soft); stroke-width: .5; }
svg polyline { fill: none; stroke-width: 2; }
.better { color: var(--better); stroke: var(--better); fill: var(--better); }
.worse { color: var(--worse); stroke: var(--worse); fill: var(--worse); }
.same, .unknown { stroke: #64748b; fill: #64748b; }
section.same, section.unknown { color: #64748b; }
"""


KINDS = dict(zip(Verdict, ("better", "worse", "same", "unknown", "unknown"), strict=True))
"""CSS classes by verdict."""


class Conclusion(NamedTuple):
    """Conclusion of a report, shown first on the terminal and the page."""

    verdict: Verdict
    lines: tuple[str, ...]


def describe_run(tool: str, argv: Sequence[str]) -> dict[str, Any]:
    """Describe the command and its machine: the first keys of every report."""
    return {
        "command": shlex.join(("eaglegate", tool, *hide_secrets(argv))),
        "version": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpus": len(os.sched_getaffinity(0)),
        },
    }


def hide_secrets(argv: Sequence[str]) -> list[str]:
    """Return a command line without the values of headers and keys."""
    out: list[str] = []
    for argument in argv:
        name, equals, _ = argument.partition("=")
        follows_secret = bool(out) and out[-1] in SECRET_FLAGS
        is_secret = name in SECRET_FLAGS and equals
        out.append("..." if follows_secret else f"{name}=..." if is_secret else argument)
    return out


def write_json(path: Path, report: Any) -> None:
    path.write_bytes(to_json(report) + b"\n")


def to_json(report: Any) -> bytes:
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    options |= orjson.OPT_PASSTHROUGH_DATACLASS
    return orjson.dumps(report, default=_to_plain, option=options)


def _to_plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, (tuple, set)):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


Rows = Sequence[Sequence[str]]


class Section(NamedTuple):
    """Title, table and, on the page, charts."""

    title: str
    head: Sequence[str]
    rows: Rows
    charts: Sequence[str] = ()


class Report(ABC):
    """Report of a command. Each kind says what its parts are; all are written alike."""

    TITLE: ClassVar[str]
    run: Mapping[str, Any]
    """The command and its machine (``describe_run``)."""

    @abstractmethod
    def conclude(self) -> Conclusion | None: ...

    @abstractmethod
    def list_notes(self) -> list[str]: ...

    @abstractmethod
    def make_sections(self) -> Iterable[Section]: ...

    def describe(self) -> Any:
        """Return the content of ``report.json``."""
        return self

    def describe_run(self) -> Mapping[str, Any]:
        """Return what the page says of the run."""
        return self.run

    def write(self, folder: Path) -> list[Path]:
        """Write the report and return its files."""
        files = [folder / "report.json", folder / "report.html"]
        write_json(files[0], self.describe())
        files[1].write_text(self.render_page(), encoding="utf-8")
        return files

    def print(self, folder: Path) -> None:
        """Write the report to its folder and to the terminal. Raises OSError."""
        files = self.write(folder)
        print(self.render_text(), "", *files, sep="\n")

    def render_text(self) -> str:
        conclusion = self.conclude()
        lines = [*(conclusion.lines if conclusion else ()), *self.list_notes()]
        parts = ["\n".join(lines)] if lines else []
        for title, head, rows, _ in self.make_sections():
            parts += [title, format_table(head, rows)]
        return "\n\n".join([*parts, f"$ {self.run['command']}"])

    def render_page(self) -> str:
        page = Page(self.TITLE, self.conclude())
        page.add_list(self.list_notes())
        for title, head, rows, charts in self.make_sections():
            page.add_heading(capitalise(title))
            page.add_table(head, rows)
            page.add_charts(charts)
        page.add_run(self.describe_run())
        return page.render()


def format_table(head: Sequence[str], rows: Rows) -> str:
    """Format a table as aligned Markdown."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def format_number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def format_estimate(estimate: Estimate | None, digits: int = 3) -> str:
    """Format a value with its interval."""
    if estimate is None:
        return ""
    value = format_number(estimate.value, digits)
    if estimate.low is None or estimate.high is None:
        return value
    limits = (format_number(end, digits) for end in (estimate.low, estimate.high))
    return f"{value} ({' to '.join(limits)})"


def format_ratio(ratio: Estimate | None) -> str:
    """Format a ratio with its interval; empty without one."""
    if ratio is None or ratio.low is None:
        return ""
    return f"{ratio.value:.2f}x ({format_ends(ratio)})"


def format_ends(ratio: Estimate) -> str:
    """Format the interval of a ratio that has one."""
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def capitalise(text: str) -> str:
    """Capitalise the first letter and leave the rest unchanged."""
    return text[:1].upper() + text[1:]


def to_point(x: float, estimate: Estimate) -> Point:
    return Point(x, estimate.value, estimate.low, estimate.high)


class Page:
    """Self-contained HTML page, with the conclusion first and the command at the end."""

    def __init__(self, title: str, conclusion: Conclusion | None = None) -> None:
        self._title = title
        self._parts: list[str] = []
        if conclusion is not None:
            hero, *paragraphs = (f"<p>{escape(line)}</p>" for line in conclusion.lines)
            self._parts.append(
                f'<section class="conclusion {KINDS[conclusion.verdict]}">'
                f"{hero}{''.join(paragraphs)}</section>"
            )

    def add_heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def add_text(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def add_code(self, text: str, summary: str = "") -> None:
        code = f"<pre>{escape(text)}</pre>"
        details = f"<details><summary>{escape(summary)}</summary>{code}</details>"
        self._parts.append(details if summary else code)

    def add_list(self, items: Iterable[str]) -> None:
        entries = "".join(f"<li>{escape(item)}</li>" for item in items)
        if entries:
            self._parts.append(f"<ul>{entries}</ul>")

    def add_table(self, head: Sequence[str], rows: Rows) -> None:
        lines = [f"<tr>{_join_cells('th', head)}</tr>"]
        lines += [f"<tr>{_join_cells('td', row)}</tr>" for row in rows]
        self._parts.append(f"<table>{''.join(lines)}</table>")

    def add_charts(self, charts: Iterable[str]) -> None:
        if content := "".join(charts):
            self._parts.append(f'<div class="charts">{content}</div>')

    def add_run(self, run: Mapping[str, Any]) -> None:
        """Add the command that made the report, and the description of its machine."""
        self.add_heading("Run")
        self.add_code(str(run["command"]))
        self.add_list(f"{name}: {value}" for name, value in run.items() if name != "command")

    def render(self) -> str:
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width">'
            f"<title>{escape(self._title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{escape(self._title)}</h1>{''.join(self._parts)}</body></html>\n"
        )


def _join_cells(kind: str, cells: Sequence[str]) -> str:
    return "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells)
