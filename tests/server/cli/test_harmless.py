"""Foreign text on a terminal: control, reversing and invisible characters are spelled."""

from __future__ import annotations

import pytest

from eaglegate.server.cli.harmless import make_harmless, make_line_harmless

HOSTILE = "\x1b]0;owned\x07\x1b[2Jred\u202eevil\u2066 \x9b31m a\rb \U000e0041 👩\u200d🚀 é\n"


@pytest.mark.parametrize("pieces", [list(HOSTILE), [HOSTILE]], ids=["cut", "whole"])
def test_hostile_text_is_harmless_on_a_terminal_however_it_is_cut(pieces):
    text = "".join(map(make_harmless, pieces))
    assert "\\x1b]0;owned\\x07\\x1b[2Jred\\u202eevil\\u2066 \\x9b31m ab" in text
    assert "👩\u200d🚀 é" in text
    assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r", "\U000e0041"}


@pytest.mark.parametrize("make", [make_harmless, make_line_harmless])
def test_every_control_but_tab_and_line_feed_is_spelled(make):
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    assert {c for c in make(every) if not c.isprintable()} <= {"\n", "\t"}
    assert make("plain, é, 漢字, עברית, 🇳🇴") == "plain, é, 漢字, עברית, 🇳🇴"
    assert make_line_harmless("a\nb\tc") == "a\\nb\\tc"
