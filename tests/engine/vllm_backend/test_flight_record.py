"""The record of running requests is there after the process that wrote it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eaglegate.engine.vllm_backend.flight_record import (
    CAPACITY,
    VARIABLE,
    FlightRecord,
    FlightRecorder,
)
from tests.engine.vllm_backend.test_scheduler import Pretence

ROOT = Path(__file__).parents[3]


def test_running_requests_are_read_after_the_engine_was_killed() -> None:
    record = FlightRecord()
    code = (
        "import os, signal\n"
        "from eaglegate.engine.vllm_backend.flight_record import FlightRecorder\n"
        "recorder = FlightRecorder()\n"
        "recorder.write(['a-1', 'b-2', 'c-3'])\n"
        "recorder.write(['b-2'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | record.variables | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert record.read() == {"b-2"}
    record.unlink()
    assert record.read() == {"b-2"}
    assert not Path(record.variables[VARIABLE]).exists()


def test_without_a_gateway_nothing_is_written() -> None:
    FlightRecorder({}).write(["a"])


def test_more_requests_than_fit_do_no_harm() -> None:
    record = FlightRecord()
    FlightRecorder(record.variables).write([f"request-{number}" for number in range(CAPACITY)])
    assert "request-7" in record.read()
    record.unlink()


def test_the_scheduler_records_requests_until_their_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = FlightRecord()
    monkeypatch.setenv(VARIABLE, record.variables[VARIABLE])
    pretence = Pretence()
    pretence.add("a")
    assert record.read() == frozenset(), "it waits in the queue"
    pretence.step()
    assert record.read() == {"a"}
    pretence.step()
    assert record.read() == frozenset()
    record.unlink()
