"""Twins are what an answer writes when it quotes: escaped results, plain arguments."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from eaglegate.server.generation.twins import TWIN_CHARACTERS, write_twins

CODE = 'def f():\n    return "x"\n'


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}


def test_results_are_escaped() -> None:
    parts = [{"type": "text", "text": "a\nb"}, {"type": "image_url", "image_url": "x\n"}]
    messages = [
        {"role": "user", "content": CODE},
        {"role": "tool", "content": CODE},
        {"role": "tool", "content": "plain"},
        {"role": "tool", "content": parts},
    ]
    assert write_twins(messages) == 'def f():\\n    return \\"x\\"\\n\n\na\\nb'


def test_arguments_are_plain() -> None:
    arguments = {"path": "a.py", "edits": [{"new": CODE}], "note": "no escapes in this one"}
    assert write_twins([call(json.dumps(arguments))]) == CODE
    assert write_twins([call(arguments)]) == CODE


def test_results_of_several_lines_are_indented_as_in_a_diff() -> None:
    file = "a\n  b\n\nc\nd"
    messages = [{"role": "tool", "content": file}, {"role": "tool", "content": "x\ny"}, call(file)]
    assert write_twins(messages) == " a\n   b\n \n c\n d\n\na\\n  b\\n\\nc\\nd\n\nx\\ny"
    context = [
        line
        for line in difflib.unified_diff(file.split("\n"), ["a", "  b", "", "c", "e"], lineterm="")
        if line.startswith(" ")
    ]
    assert context == [*write_twins(messages).split("\n")[1:4]]


def test_indented_results_take_the_room_that_others_leave() -> None:
    size = TWIN_CHARACTERS // 8
    twins = write_twins([{"role": "tool", "content": "old\n" * size}])
    indented, escaped = twins.rsplit("\n\n", 1)
    assert escaped == "old\\n" * size
    assert len(indented) == TWIN_CHARACTERS - len(escaped)
    assert indented.endswith(" old\n old\n")


def test_the_newest_are_kept() -> None:
    old, new = "old\n" * TWIN_CHARACTERS, "new\n" * (TWIN_CHARACTERS // 8)
    twins = write_twins([{"role": "tool", "content": old}, {"role": "tool", "content": new}])
    assert twins.endswith("new\\n" * (TWIN_CHARACTERS // 8))
    assert len(twins) == TWIN_CHARACTERS + 2
    assert twins.startswith("old\\n") or twins[:5] in "old\\nold\\n"


class CountedList(list[Any]):
    """Counts the items that are read of it."""

    num_read = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.num_read += 1
            yield item

    def __reversed__(self) -> Iterator[Any]:
        for item in super().__reversed__():
            self.num_read += 1
            yield item


def test_long_arguments_are_not_read_to_their_beginning() -> None:
    numbers = CountedList([1] * 1_000_000)
    file = "new\n" * (TWIN_CHARACTERS // 16)
    assert write_twins([call({"file": CODE, "numbers": numbers})]) == ""
    assert numbers.num_read < 50_000
    assert write_twins([call({"numbers": numbers, "file": file})]) == file
    assert write_twins([call({"file": CODE}), call({"numbers": numbers})]) == ""
    parts = CountedList([{"text": "x"}] * 1_000_000)
    assert write_twins([{"role": "tool", "content": parts}]) == ""
    assert parts.num_read < 100_000


def test_arguments_that_are_too_long_to_read_hide_no_others() -> None:
    long = json.dumps({"numbers": [1] * 1_000_000, "file": CODE})
    assert write_twins([call(long)]) == ""
    assert write_twins([call({"file": CODE}), call(long)]) == CODE


def test_no_arguments_break_them() -> None:
    for arguments in ("[" * 100_000, "{", "null", 7, [[[[[[[[[[["deep " * 9]]]]]]]]]]]):
        assert write_twins([call(arguments)]) == ""
