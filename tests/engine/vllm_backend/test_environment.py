import os

import pytest

from eaglegate.engine import vllm_backend


@pytest.mark.parametrize(
    ("cores", "workers", "want"),
    [([0, 1], 2, "0|1"), ([0, 1, 2, 3, 4], 2, "0,1|2,3"), ([4, 6, 8, 9], 1, "4,6,8,9")],
)
def test_cores_are_shared_out(cores: list[int], workers: int, want: str) -> None:
    assert vllm_backend.bind_cores(cores, workers) == want


def test_more_workers_than_cores_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"over 4 needs .* 2 are allowed"):
        vllm_backend.bind_cores([0, 1], 4)


def test_variables_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "1")
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024")
    vllm_backend.prepare_cpu(tensor_parallel=1, threads=1)
    assert os.environ["VLLM_USE_AOT_COMPILE"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "1024"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
