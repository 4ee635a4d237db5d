"""One log: lines of every origin as JSON."""

from __future__ import annotations

import io
import json
import logging

import pytest

from eaglegate.engine.logs import JsonFormatter, WrappedLines, make_formatter, wrap_line


def written(formatter: logging.Formatter, log: logging.Logger, emit) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    try:
        emit(log)
    finally:
        log.removeHandler(handler)
    return out.getvalue()


def test_a_record_is_one_object_with_its_fields_and_its_exception():
    def fail(log: logging.Logger) -> None:
        try:
            raise ValueError("no\nsuch thing")
        except ValueError:
            log.exception("it %s", "failed", extra={"fields": {"worker": "http://a"}})

    text = written(JsonFormatter(), logging.getLogger("tests.logs"), fail)
    assert text.count("\n") == 1
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("error", "tests.logs", "it failed")
    assert line["worker"] == "http://a"
    assert "ValueError" in line["exception"]
    assert line["time"].endswith("+00:00")


def test_text_is_for_people():
    log = logging.getLogger("tests.logs")
    text = written(make_formatter("text"), log, lambda log: log.warning("so it is"))
    assert text.endswith(" WARNING tests.logs: so it is\n")


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            b"(EngineCore pid=7) ERROR 11-20 10:11:37 [core.py:1204] it failed\n",
            {
                "level": "error",
                "message": "it failed",
                "process": "EngineCore pid=7",
                "source": "core.py:1204",
            },
        ),
        (b"WARNING 11-20 10:11:37 [a.py:1] x\n", {"level": "warning", "message": "x"}),
        (b'  File "llama.py", line 1\n', {"level": "info", "message": '  File "llama.py", line 1'}),
        (b"\xff {\n", {"message": "\ufffd {"}),
    ],
)
def test_a_process_s_line_is_an_object(line: bytes, want: dict[str, str]):
    made = wrap_line(line)
    assert made.endswith(b"}\n")
    found = json.loads(made)
    assert {key: found[key] for key in want} == want
    assert found["logger"] == "vllm.process"


def test_blank_lines_are_left_out_and_objects_are_left_alone():
    assert wrap_line(b"  \n") == b""
    line = b'{"time": "2026", "message": "x"}\n'
    assert wrap_line(line) == line


def test_printed_lines_become_log_entries():
    out = io.StringIO()
    stream = WrappedLines(out)
    print("a warning", "of a library", file=stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        logging.Formatter("(Main pid=7) ERROR 11-20 10:11:37 [a.py:1] %(message)s")
    )
    handler.handle(logging.LogRecord("vllm", logging.ERROR, "a.py", 1, "it failed", None, None))
    handler.setFormatter(JsonFormatter())
    handler.handle(logging.LogRecord("vllm", logging.ERROR, "a.py", 1, "again", None, None))
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["message"]) == ("info", "a warning of a library")
    assert (second["level"], second["process"]) == ("error", "Main pid=7")
    assert third["message"] == "again"
