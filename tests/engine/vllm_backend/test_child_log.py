import subprocess
import sys

import pytest

from eaglegate.engine.vllm_backend import child_log
from eaglegate.engine.vllm_backend.child_log import ChildLog, find_cause

MISSING_MODULE = """\
(EngineCore pid=7) INFO 11-20 10:11:36 [core.py:1] Initializing a V1 LLM engine
(EngineCore pid=7) ERROR 11-20 10:11:37 [core.py:1204] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-20 10:11:37 [core.py:1204] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-20 10:11:37 [core.py:1204]   File "llama.py", line 1, in load
(EngineCore pid=7) ERROR 11-20 10:11:37 [core.py:1204] ValueError: no parameter named 'fc_norm'
(EngineCore pid=7) Process EngineCore:
(EngineCore pid=7) ValueError: no parameter named 'fc_norm'
RuntimeError: Engine core initialization failed. See root cause above.
"""
LATE_CRASH = """\
(EngineCore pid=9) ERROR 11-20 10:20:01 [core.py:1330] EngineCore encountered a fatal error.
(EngineCore pid=9) ERROR 11-20 10:20:01 [core.py:1330] RuntimeError: size of a (171) must match
(APIServer pid=3) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
"""
REFUSED_BEFORE = f"""\
(EngineCore pid=9) ERROR 11-20 10:19:00 [__init__.py:9] Failed to compile grammar for request r
(EngineCore pid=9) ERROR 11-20 10:19:00 [__init__.py:9] ValueError: no such rule
{LATE_CRASH}"""
WORKER_FIRST = f"""\
(Worker_TP1 pid=5) ERROR 11-20 10:11:36 [multiproc_executor.py:7] WorkerProc failed to start.
(Worker_TP1 pid=5) ERROR 11-20 10:11:36 [multiproc_executor.py:7] OSError: no weights here
{MISSING_MODULE}"""


@pytest.mark.parametrize(
    ("log", "want"),
    [
        (MISSING_MODULE, "ValueError: no parameter named 'fc_norm'"),
        (LATE_CRASH, "RuntimeError: size of a (171) must match"),
        (REFUSED_BEFORE, "RuntimeError: size of a (171) must match"),
        (WORKER_FIRST, "OSError: no weights here"),
        ("torch.OutOfMemoryError: out of memory", "OutOfMemoryError: out of memory"),
        ("x.py:1: FutureWarning: `reduce_op` is deprecated\nRuntimeWarning: x", ""),
        ("all is well", ""),
    ],
)
def test_the_cause_is_the_first_exception_that_is_no_sequel(log: str, want: str) -> None:
    assert find_cause(log.splitlines()) == want


def test_children_are_heard_until_they_end(capfd: pytest.CaptureFixture[str]) -> None:
    """The child writes after the capture is over, as an engine does when it dies late."""
    log = ChildLog(max_lines=3)
    code = "input(); print('one'); print('two'); raise ValueError('late')"
    with log.capture():
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    print("the parent's own words")
    child.communicate("go\n")
    log.join(timeout_s=5)
    assert find_cause(log.lines) == "ValueError: late"
    assert len(log.lines) == 3
    heard = capfd.readouterr()
    assert heard.out == "the parent's own words\n"
    assert "two" in heard.err


def test_the_streams_are_restored_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    log = ChildLog()
    with pytest.raises(KeyError), log.capture():
        raise KeyError
    print("still here")
    assert capfd.readouterr().out == "still here\n"


def test_last_words_are_bounded_and_hold_nothing_of_a_request():
    lines = [
        "(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1] EngineCore hit an exception.",
        "(EngineCore pid=7) ERROR 11-20 10:00:00 [dump_input.py:72] Dumping scheduler output: x",
        "(EngineCore pid=7)   NewRequestData(req_id=r, prompt_token_ids=[1, 2])",
        "",
        "[  66.6 s]   ... starting vLLM with demo",
        "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  8.59it/s]",
        "(EngineCore pid=7) RuntimeError: " + "boom" * 200,
    ]
    first, last = child_log.redact_tail(lines, 20)
    assert first == "EngineCore hit an exception."
    assert last.startswith("RuntimeError: boom")
    assert len(last) == child_log.MAX_LINE_CHARS
    assert len(child_log.redact_tail(["line"] * 900, 20)) == 20


def test_a_cause_that_may_hold_a_part_of_a_request_is_its_type_alone():
    assert child_log.redact_cause("KeyError: 7") == "KeyError: 7"
    assert child_log.redact_cause("ValueError: bad prompt 'my secret'") == "ValueError"
    assert len(child_log.redact_cause("ValueError: " + "x" * 900)) == child_log.MAX_LINE_CHARS
