"""Start-up says what it does."""

from __future__ import annotations

import io
import json
import logging
import sys
import tempfile
import threading

import pytest

from eaglegate.engine.errors import EngineStartError
from eaglegate.engine.vllm_backend.child_log import ChildLog
from eaglegate.server.cli.console import StartupProgress


class Page(io.StringIO):
    """Remembers, and tells when a heartbeat was written."""

    def __init__(self):
        super().__init__()
        self.beat = threading.Event()

    def write(self, text):
        if "..." in text:
            self.beat.set()
        return super().write(text)


def test_steps_are_shown_while_an_engine_that_starts_has_standard_error(capfd):
    progress = StartupProgress()
    with ChildLog(echo=None).capture():
        progress("starting vLLM")
    progress.close()
    assert "s] starting vLLM" in capfd.readouterr().err


def test_a_step_that_takes_long_is_repeated_and_no_note():
    page = Page()
    progress = StartupProgress(page, heartbeat_s=0.02)
    progress("loading")
    progress("note: kept in memory")
    assert page.beat.wait(5)
    progress.close()
    assert "s] loading" in page.getvalue()
    assert "note: kept in memory" in page.getvalue()
    assert "... loading" in page.getvalue()
    assert "... note" not in page.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_engine_that_did_not_start_leaves_its_log_in_a_file(
    log_format: str, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", Page())
    monkeypatch.setattr(sys, "stderr", Page())
    page = Page()
    progress = StartupProgress(page)
    progress.use(log_format)
    progress.fail(EngineStartError("ValueError: no fc_norm", detail="Traceback\nValueError"))
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "Traceback\nValueError\n"
    assert path.stat().st_mode & 0o077 == 0
    assert f"ValueError: no fc_norm. The engine's log: {path}" in page.getvalue()
    StartupProgress(page).fail(EngineStartError("--port is taken"))
    assert page.getvalue().endswith("eaglegate: --port is taken\n")
    assert list(tmp_path.iterdir()) == [path]


def test_a_library_that_was_loaded_before_the_format_is_known_writes_json(monkeypatch):
    errors = Page()
    monkeypatch.setattr(sys, "stdout", Page())
    monkeypatch.setattr(sys, "stderr", errors)
    log = logging.getLogger("tests.library")
    handler = logging.StreamHandler()
    log.addHandler(handler)
    progress = StartupProgress(Page())
    try:
        progress.use("json")
        log.warning("no Triton")
    finally:
        log.removeHandler(handler)
        progress.close()
    assert json.loads(errors.getvalue())["message"] == "no Triton"
