"""Tasks that every coding agent is given. ``ask`` is an agent that answers a prompt with a text."""

from __future__ import annotations

from collections.abc import Callable

from tests.clients.brain import Turn
from tests.clients.desk import Desk

Ask = Callable[[str], str]


def fix_typo(desk: Desk, ask: Ask, *turns: Turn, last: str = "Hello world") -> None:
    """In hello.txt; the last of the turns shows the file, or ``last``."""
    desk.brain.plays["fix"] = [*turns, "<think>\nIt is right now.\n</think>\n\nFixed."]
    assert ask("play:fix Fix the typo.") == "Fixed."
    assert desk.read("hello.txt") == "Hello world\n"
    assert last in desk.brain.during("fix")[-1].last


def write_typo(desk: Desk) -> str:
    return str(desk.write("hello.txt", "Hello wrld\n"))


def use_mcp(desk: Desk, ask: Ask, *turns: Turn) -> None:
    """The turns look the door's code up and note it."""
    desk.brain.plays["ask"] = [*turns, "Noted."]
    assert ask("play:ask Note it.") == "Noted."
    assert desk.notes.read_text() == "4711\n"


def delegate(desk: Desk, ask: Ask, turns: list[Turn], dig: Turn) -> None:
    """The turns hand the play ``dig`` to a sub-agent and wait for its report."""
    desk.brain.plays["delegate"] = [*turns, "The word is heron."]
    desk.brain.plays["dig"] = [dig, "It is deep."]
    assert ask("play:delegate Delegate.") == "The word is heron."
    assert "It is deep." in desk.brain.during("delegate")[-1].text


def go_on(desk: Desk, ask: Ask, remembered: str = "The word is heron.") -> None:
    """In a session in which that was said before."""
    desk.brain.plays["second"] = ["Still heron."]
    assert ask("play:second Which word?") == "Still heron."
    assert remembered in desk.brain.during("second")[-1].text
