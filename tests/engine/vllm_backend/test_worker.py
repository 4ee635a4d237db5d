import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.utils import cpu_triton_utils

from eaglegate.engine.vllm_backend.patches import empty_constraints, plain_steps, token_values


@pytest.mark.parametrize(
    ("values", "ends", "replace", "want"),
    [
        ([0.8, 1.2], [2, 3], (0, 0), [0.8, 0.8, 1.2]),
        ([0.8, 0.0, 1.2], [1, 1, 3], (0, 1), [0.8, 1.2, 1.2]),
        ([0.0, 0.5], [2, 3], (0, 1), [1.0, 1.0, 0.5]),
        ([0.8], [0], (0, 0), []),
    ],
)
def test_values_are_spread_over_draft_tokens(
    values: list[float], ends: list[int], replace: tuple[int, int], want: list[float]
) -> None:
    spread = token_values.expand_batch_to_tokens(
        torch.tensor(values), torch.tensor(ends, dtype=torch.int32), len(want), *replace
    )
    assert spread.dtype == torch.float32
    assert spread.tolist() == pytest.approx(want)


def test_whole_numbers_stay_whole() -> None:
    top_k = torch.tensor([5, 7], dtype=torch.int32)
    spread = token_values.expand_batch_to_tokens(top_k, torch.tensor([1, 3]), 3)
    assert (spread.dtype, spread.tolist()) == (torch.int32, [5, 7, 7])


def test_vllm_still_needs_that() -> None:
    """vLLM's kernel writes to a copy of anything but int64; once it does not, drop ours."""
    output = torch.full((3,), -1.0)
    ends = torch.tensor([2, 3], dtype=torch.int32)
    cpu_triton_utils._expand_kernel_impl(output, torch.tensor([0.8, 1.2]), ends, 0, 1)
    assert output.tolist() == [-1.0, -1.0, -1.0]


def test_nothing_to_constrain_is_not_constrained() -> None:
    def vllm_s(*_: Any) -> torch.Tensor:
        return torch.tensor([]).max()

    empty = torch.empty(0, 8)
    assert empty_constraints.apply_sampling_constraints(vllm_s, empty) is empty
    with pytest.raises(RuntimeError):
        empty_constraints.apply_sampling_constraints(vllm_s, torch.empty(1, 8))


@pytest.mark.parametrize(
    ("asynchronous", "longest", "is_plain"), [(False, 0, True), (False, 2, False), (True, 0, False)]
)
def test_a_step_that_verifies_nothing_takes_the_plain_sampler(
    asynchronous: bool, longest: int, is_plain: bool
) -> None:
    runner: Any = SimpleNamespace(
        use_async_scheduling=asynchronous,
    )
    given = SimpleNamespace(max_spec_len=longest)
    got = plain_steps.sample(lambda _, __, metadata: metadata, runner, None, given)
    assert got is (None if is_plain else given)


ALLOWED_AMX = """
import ctypes, torch
import eaglegate.engine.vllm_backend.worker
allowed = ctypes.c_uint64()
assert ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(allowed)) == 0  # ARCH_GET_XCOMP_PERM
print(bool(allowed.value & 1 << 18) or not torch.cpu._is_amx_tile_supported())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is a part of x86")
def test_workers_may_use_the_registers_of_amx() -> None:
    """vLLM's attention uses them unasked, and Linux ends a process that has not asked."""
    done = subprocess.run([sys.executable, "-c", ALLOWED_AMX], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr[-2000:]
