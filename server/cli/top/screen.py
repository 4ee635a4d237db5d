"""The screen of ``eaglegate top``. It needs textual, from the extra ``top``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from itertools import cycle, islice
from typing import ClassVar
from urllib.parse import quote

from rich.table import Table as Grid
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Sparkline, Static

from eaglegate.server.cli.client import CallFailed
from eaglegate.server.cli.feature_table import find_command
from eaglegate.server.cli.harmless import make_harmless, make_line_harmless
from eaglegate.server.cli.top.panels import (
    LISTS,
    Figure,
    State,
    Table,
    describe_engines,
    list_figures,
    list_kinds,
    list_requests,
    list_slices,
    list_states,
)
from eaglegate.server.cli.top.reading import GatewayReader, GatewayReading, explain_failure

TONES = {"good": "green", "warn": "yellow", "bad": "bold red", "": ""}
"""Styles in addition to text: colour alone carries no information."""
MARKS = {"bad": "! ", "warn": "~ ", "good": "", "": ""}
SINCE = 5
"""Number of readings that are kept; the newest is compared with the oldest."""


class FigureBox(Container):
    """One figure with the line of its recent history."""

    def compose(self) -> ComposeResult:
        yield Static(classes="words", markup=False)
        yield Sparkline()

    def show(self, figure: Figure) -> None:
        tone = TONES[figure.tone]
        words = Text.assemble(
            (figure.name, "dim"), "\n",
            (MARKS[figure.tone] + figure.value, f"bold {tone}".strip()), "\n",
            (figure.note, tone or "dim"),
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip
        self.query_one(".words", Static).update(words)
        line = self.query_one(Sparkline)
        line.data, line.visible = list(figure.past), bool(figure.past)


class ExplanationScreen(ModalScreen[None]):
    """The parts of one request's time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss_screen", "back"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="explanation"):
            yield Static(Text(make_harmless(self._text)))
        yield Footer()

    def action_dismiss_screen(self) -> None:
        self.dismiss()


class TopApp(App[None]):
    """Polls the gateway, and waits for it while it is unreachable."""

    CSS = """
    #head { height: auto; }
    #figures { layout: grid; grid-size: 6; grid-rows: 5; height: auto; }
    FigureBox { height: 5; padding: 0 1; }
    FigureBox .words { height: 3; }
    FigureBox Sparkline { height: 1; margin-top: 0; }
    .-medium #figures { grid-size: 3; }
    .-narrow #figures { grid-size: 2; }
    #states { height: auto; padding: 0 1; margin-bottom: 1; }
    .title { text-style: bold; padding: 0 1; height: 1; }
    DataTable { height: auto; max-height: 16; margin-bottom: 1; }
    #explanation { border: round $primary; padding: 0 1; margin: 1 2; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-medium"), (130, "-wide")]  # noqa: RUF012
    TITLE = "eaglegate top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("s", "next_kind", "slices"),
        Binding("r", "next_list", "requests"),
        Binding("p", "pause", "pause"),
        Binding("e", "explain", "explain"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, reader: GatewayReader, reading: GatewayReading, interval_s: float) -> None:
        super().__init__()
        self._reader, self._interval_s = reader, interval_s
        self._readings = [reading]
        self._kind, self._list = list_kinds(reading)[0], next(iter(LISTS))
        self._failure, self._failed_at = "", 0.0
        self._paused = False

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="head", markup=False)
            with Container(id="figures"):
                for _ in list_figures(self.reading):
                    yield FigureBox()
            yield Static(id="states", markup=False)
            yield Static(id="slices-title", classes="title", markup=False)
            yield DataTable(id="slices", cursor_type="none", zebra_stripes=True)
            yield Static(id="requests-title", classes="title", markup=False)
            yield DataTable(id="requests", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#requests").focus(scroll_visible=False)
        self._show()
        self.set_interval(self._interval_s, self._poll)

    @property
    def reading(self) -> GatewayReading:
        """The newest reading."""
        return self._readings[-1]

    def _poll(self) -> None:
        if not self._paused:
            self._read()

    @work(thread=True, exclusive=True, group="read")
    def _read(self) -> None:
        try:
            reading = self._reader.read()
        except CallFailed as error:
            self.call_from_thread(self._take_failure, explain_failure(error))
        else:
            self.call_from_thread(self._take, reading)

    def _take(self, reading: GatewayReading) -> None:
        """Add a reading. After a failure, older readings are dropped, since the gateway may have
        restarted.
        """
        self._readings = [*([] if self._failure else self._readings), reading][-SINCE:]
        self._failure = ""
        if self._kind not in list_kinds(reading):
            self._kind = list_kinds(reading)[0]
        self._show()

    def _take_failure(self, reason: str) -> None:
        self._failed_at = self._failed_at if self._failure else time.monotonic()
        self._failure = reason
        self._show_head()

    def _show(self) -> None:
        self._show_head()
        figures = list_figures(self.reading)
        for box, figure in zip(self.query(FigureBox), figures, strict=True):
            box.show(figure)
        baseline = self._readings[0] if len(self._readings) > 1 else None
        self.query_one("#states", Static).update(
            _lay_out_states(list_states(self.reading, baseline))
        )
        self._fill("slices", list_slices(self.reading, self._kind))
        self._fill("requests", list_requests(self.reading, self._list))

    def _show_head(self) -> None:
        report = self.reading.speculation
        head = Text.assemble(
            (f"eaglegate {report['version']}", "bold"),
            f"  {make_line_harmless(self._reader.url)}  {describe_engines(self.reading)}",
        )
        if self._failure:
            outage_s = time.monotonic() - self._failed_at
            words = f"\n! no reading for {outage_s:.0f} s, trying again: {self._failure}"
            head.append(make_harmless(words), TONES["bad"])
        elif self._paused:
            head.append("\n~ paused; p continues", TONES["warn"])
        self.query_one("#head", Static).update(head)

    def _fill(self, name: str, table: Table) -> None:
        self.query_one(f"#{name}-title", Static).update(
            table.title if table.rows else f"{table.title}: none"
        )
        widget = self.query_one(f"#{name}", DataTable)
        selected_key = _read_chosen(widget)
        widget.clear(columns=True)
        for column in table.columns:
            widget.add_column(Text(column))
        for key, row in dict(zip(table.keys, table.rows, strict=True)).items():
            widget.add_row(*map(Text, row), key=key)
        widget.display = bool(table.rows)
        if selected_key in table.keys:
            widget.move_cursor(row=widget.get_row_index(selected_key), scroll=False)

    def action_next_kind(self) -> None:
        """Show the next kind of slices."""
        self._kind = _find_next(list_kinds(self.reading), self._kind)
        self._show()

    def action_next_list(self) -> None:
        """Show the next list of requests."""
        self._list = _find_next(list(LISTS), self._list)
        self.query_one("#requests", DataTable).clear()
        self._show()

    def action_pause(self) -> None:
        """Pause or resume reading."""
        self._paused = not self._paused
        self._show_head()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value:
            self._explain(event.row_key.value)

    def action_explain(self) -> None:
        """Explain the selected request."""
        if key := _read_chosen(self.query_one("#requests", DataTable)):
            self._explain(key)

    @work(thread=True, exclusive=True, group="explain")
    def _explain(self, name: str) -> None:
        if (module := find_command("explain")) is None:
            return
        try:
            row = self._reader.explain(quote(name, safe=""))
            text = "\n".join(import_module(module).format_explanation(row))
        except CallFailed as error:
            text = explain_failure(error)
        self.call_from_thread(self.push_screen, ExplanationScreen(text))


def _lay_out_states(states: Sequence[State]) -> Grid:
    grid = Grid.grid(padding=(0, 1))
    for state in states:
        grid.add_row(
            Text(state.name, "dim"), Text(MARKS[state.tone] + state.text, TONES[state.tone])
        )
    return grid


def _read_chosen(table: DataTable[Text]) -> str:
    if not table.row_count or table.cursor_row >= table.row_count:
        return ""
    key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
    return key or ""


def _find_next(names: Sequence[str], name: str) -> str:
    index = names.index(name) if name in names else -1
    return next(islice(cycle(names), index + 1, None))
