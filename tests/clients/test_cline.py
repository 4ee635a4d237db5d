"""Cline's CLI on chat completions."""

from __future__ import annotations

import pytest

from tests.clients.desk import Desk, Ran

pytestmark = pytest.mark.client("cline")

SWITCHES = {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_DISABLE_AUTO_UPDATE": "1"}


def cline(desk: Desk, *arguments: str) -> Ran:
    return desk.run("cline", "cline", *arguments, env=SWITCHES)


def configure(desk: Desk) -> None:
    ran = cline(desk, "auth", "-p", "openai", "-k", "none", "-m", "demo", "-b", f"{desk.url}/v1")
    assert ran.code == 0, ran


def test_edits(desk):
    """reads a file, edits it, runs a command"""
    configure(desk)
    desk.write("hello.txt", "Hello wrld\n")
    desk.brain.plays["fix"] = [lambda seen: str(sorted(seen.tools.items()))]
    ran = cline(desk, "--json", "-P", "openai", "-m", "demo", "play:fix Fix the typo.")
    print(ran)
    assert 0
