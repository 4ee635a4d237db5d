"""Why an engine did not start, from the logs of engines that died."""

from __future__ import annotations

import pytest

from eaglegate.engine.vllm_backend.start_failure import REMEDIES, explain_failure, find_remedy

FLASHINFER = """\
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204]   File "/v/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 9, in run
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204]     sampler = Sampler()
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204]   File "/v/lib/python3.12/site-packages/vllm/v1/sample/topk.py", line 63, in __init__
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204]   File "/usr/lib/python3.12/importlib/__init__.py", line 90, in import_module
(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:1204] ModuleNotFoundError: No module named 'flashinfer'
(EngineCore pid=7) Process EngineCore:
"""  # noqa: E501
ENDED = "Engine core initialization failed. Failed core proc(s): {'EngineCore': -7}"


def explain(log: str, error: Exception | None = None, ended_by: str = "") -> str:
    return explain_failure(log.splitlines(), error or RuntimeError("see above"), ended_by)


def test_a_failure_names_its_place_and_its_remedy() -> None:
    sentence = explain(FLASHINFER)
    assert sentence.startswith(
        "ModuleNotFoundError: No module named 'flashinfer' (vllm/v1/sample/topk.py:63, in __init__)"
    )
    assert "VLLM_USE_FLASHINFER_SAMPLER=0" in sentence
    assert "\n" not in sentence


def test_vllm_is_recognised_wherever_it_is_unpacked() -> None:
    log = FLASHINFER.replace("/v/lib/python3.12/site-packages/", "/tmp/gpu/vllm/")
    assert "(vllm/v1/sample/topk.py:63, in __init__)" in explain(log)


def test_a_failure_in_this_process_has_the_place_of_its_own_traceback() -> None:
    with pytest.raises(ValueError) as raised:
        find_remedy_of_nothing()
    sentence = explain("", raised.value)
    assert sentence.startswith("no such model (tests/engine/vllm_backend/test_start_failure.py:")


def find_remedy_of_nothing() -> None:
    raise ValueError("no such model\nand more")


@pytest.mark.parametrize(
    ("error", "ended_by", "words"),
    [
        (RuntimeError(ENDED), "", ("ended by SIGBUS while it started", "--shm-size")),
        (RuntimeError("The engine died."), "SIGILL", ("ended by SIGILL", "--dtype float32")),
        (RuntimeError("The engine died."), "SIGKILL", ("ended by SIGKILL", "--max-model-len")),
    ],
)
def test_a_signal_explains_an_engine_that_left_no_exception(
    error: Exception, ended_by: str, words: tuple[str, ...]
) -> None:
    sentence = explain("", error, ended_by)
    assert all(word in sentence for word in words), sentence


CUDA = "CUDA error (/w/hopper/flash_fwd_launch_template.h:60): device kernel image is invalid"


@pytest.mark.parametrize(
    ("error", "ended_by", "end"),
    [
        (RuntimeError(ENDED.replace("-7", "1")), "", "ended while it started"),
        (RuntimeError(ENDED.replace("-7", "-6")), "SIGABRT", "ended by SIGABRT while it started"),
        (RuntimeError("The engine has died."), "exit status 1", "ended by exit status 1"),
    ],
)
def test_an_error_of_native_code_is_the_cause(error: Exception, ended_by: str, end: str) -> None:
    log = (
        "(EngineCore pid=7) ERROR 11-26 10:11:37 [core.py:12] a slow step failed\n"
        "Error: an earlier attempt\n"
        f"(EngineCore pid=7) {CUDA}\n"
        "(EngineCore pid=7) WARNING 11-26 10:11:37 [core.py:13] no error, but a warning\n"
        "nanobind: leaked 3 instances!\n"
    )
    sentence = explain(log, error, ended_by)
    assert sentence.startswith(f"the engine process {end}: {CUDA}; this build of vLLM")
    assert "memory" not in sentence


def test_native_errors_with_parts_of_a_request_are_left_out() -> None:
    sentence = explain("error: prompt_token_ids=[1, 2]", RuntimeError(ENDED))
    assert "token_ids" not in sentence


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (
            "ValueError: Free memory on device cuda:0 (2.1/79.2 GiB) on startup is less than "
            "desired GPU memory utilization (0.92, 72.9 GiB).",
            "smaller --gpu-memory-utilization",
        ),
        (
            "ValueError: No available memory for the cache blocks.",
            "larger --gpu-memory-utilization",
        ),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "--max-num-seqs"),
        ("RuntimeError: CUDA error: no kernel image is available for execution", "build for it"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability", "--dtype half"),
        ("OSError: libcudart.so.13: cannot open shared object file", "nvidia-smi"),
        ("RuntimeError: Could not find nvcc and default cuda_home", "CUDA toolkit"),
        ("RuntimeError: NCCL error: unhandled system error", "NCCL_DEBUG=INFO"),
        ("OSError: [Errno 28] No space left on device: '/psm_1'", "--ipc=host"),
        ("ValueError: no parameter named 'fc_norm'", ""),
    ],
)
def test_known_causes_have_a_remedy(cause: str, words: str) -> None:
    remedy = find_remedy(cause)
    assert words in remedy if words else not remedy


def test_remedies_are_parts_of_a_sentence() -> None:
    assert not [text for _, text in REMEDIES if text.endswith(".") or "\n" in text]
