"""Batches that find a CUDA graph, by vLLM's own sizes and dispatch: no GPU is needed."""

from __future__ import annotations

import doctest
from types import SimpleNamespace as Parts
from typing import Any
from unittest import mock

import pytest
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

from eaglegate.engine.vllm_backend import graphs
from eaglegate.engine.vllm_backend.graphs import (
    MAX_GRAPH_TOKENS,
    choose_depths,
    choose_sizes,
    declare_depths,
)

BATCHED_TOKENS = 8192


def size_graphs(most: int, table: Any, sizes: list[int] | None, requests: int) -> Any:
    """vLLM's configuration, as far as it decides on sizes."""
    compilation = Parts(
        max_cudagraph_capture_size=None,
        cudagraph_capture_sizes=sizes,
        cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
        pass_config=Parts(enable_sp=False, sp_min_token_num=None),
        post_init_cudagraph_sizes=lambda: None,
    )
    speculation = Parts(
        num_speculative_tokens=most,
        num_speculative_tokens_per_batch_size=table,
        uses_dynamic_speculative_decoding=lambda: table is not None,
    )
    config = Parts(
        model_config=Parts(enforce_eager=False, is_encoder_decoder=False),
        compilation_config=compilation,
        uniform_decode_query_len=1 + most,
        num_speculative_tokens=most,
        scheduler_config=Parts(max_num_seqs=requests, max_num_batched_tokens=BATCHED_TOKENS),
        speculative_config=speculation,
        parallel_config=Parts(tensor_parallel_size=1, data_parallel_size=1, use_ubatching=False),
        performance_mode="balanced",
        cache_config=Parts(use_kda_recoverssm=False),
    )
    family = "vllm.platforms.current_platform.is_device_capability_family"
    with mock.patch(family, lambda *_: False, create=True):
        VllmConfig._set_cudagraph_sizes(config)
    return config


def open_manager(config: Any) -> CudaGraphManager:
    """vLLM's dispatcher, with every graph captured that it would capture."""
    manager: Any = object.__new__(CudaGraphManager)
    manager.vllm_config = config
    manager.max_num_reqs = config.scheduler_config.max_num_seqs
    manager.compilation_config = config.compilation_config
    manager.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
    manager.decode_query_len = config.uniform_decode_query_len
    manager.varlen_decode, manager.ubatch_runner = False, None
    manager.lora_capture_cases = [0]
    manager._lora_dispatch_map, manager._max_lora_case = {}, 0
    manager._candidates, manager._capture_descs, manager.graphs = {}, {}, {}
    manager._graphs_captured = True
    manager._init_candidates()
    return manager


def declare(most: int, requests: int, depth: int | None = None) -> CudaGraphManager:
    depths = choose_depths(most, depth)
    table = None if depths == [most] else declare_depths(depths, requests)
    sizes = choose_sizes(depths, requests) if depth is None else None
    return open_manager(size_graphs(most, table, sizes, requests))


def find_graph(manager: CudaGraphManager, widths: list[int]) -> int | None:
    """Tokens of the FULL graph that a decode step runs with; None where it runs with none."""
    tokens = len(widths) + sum(widths)
    uniform = widths[0] + 1 if len(set(widths)) == 1 else None
    found = manager.dispatch(len(widths), tokens, uniform, 0, max_query_len=max(widths) + 1)
    return found.num_tokens if found.cg_mode is CUDAGraphMode.FULL else None


def count_full(manager: CudaGraphManager) -> int:
    return len(manager._capture_descs[CUDAGraphMode.FULL])


def test_the_examples_in_the_module() -> None:
    assert doctest.testmod(graphs).failed == 0


@pytest.mark.parametrize("requests", [1, 2, 3, 4, 6, 8, 64, 102, 256])
@pytest.mark.parametrize("most", range(1, 11))
def test_every_batch_at_a_declared_depth_finds_a_graph(most: int, requests: int) -> None:
    manager = declare(most, requests)
    widest = manager.compilation_config.cudagraph_capture_sizes[-1]
    assert widest > 0.9 * MAX_GRAPH_TOKENS
    table = declare_depths(choose_depths(most), requests)
    assert table[-1][-1] == most
    for _, _, depth in table:
        for batch in range(1, min(requests, widest // (depth + 1)) + 1):
            padded = find_graph(manager, [depth] * batch)
            assert padded is not None, (depth, batch)
            assert padded < batch * (depth + 1) + 2 * (graphs.STRIDE + most)


@pytest.mark.parametrize("most", [3, 5, 7])
def test_a_few_depths_need_a_few_times_the_graphs_of_one(most: int) -> None:
    alone = count_full(declare(most, 256, depth=most))
    assert count_full(declare(most, 256)) < 5 * alone


@pytest.mark.parametrize(("most", "width"), [(1, 7), (3, 7), (3, 11), (3, 15), (7, 15), (7, 31)])
def test_drafts_and_lookups_find_graphs(most: int, width: int) -> None:
    depths = [*choose_depths(most), width]
    config = size_graphs(width, declare_depths(depths, 64), choose_sizes(depths, 64), 64)
    manager = open_manager(config)
    widest = config.compilation_config.cudagraph_capture_sizes[-1]
    for depth in (most, width):
        for batch in range(1, min(64, widest // (depth + 1)) + 1):
            assert find_graph(manager, [depth] * batch) is not None, (depth, batch)
    assert find_graph(manager, [most, width]) is None


@pytest.mark.parametrize(
    ("mode", "table", "second", "widths"),
    [
        ("FULL_AND_PIECEWISE", declare_depths([0, 1, 3]), True, (0, 1, 3)),
        ("FULL_DECODE_ONLY", None, False, (3,)),
        ("FULL_AND_PIECEWISE", declare_depths([0, 1, 3]), False, None),
        ("FULL", None, True, None),
        ("PIECEWISE", None, True, None),
        ("NONE", None, True, None),
    ],
)
def test_graphs_are_read_from_the_configuration(
    mode: str, table: Any, second: bool, widths: tuple[int, ...] | None
) -> None:
    config: Any = Parts(
        speculative_config=Parts(
            num_speculative_tokens=3, num_speculative_tokens_per_batch_size=table
        ),
        compilation_config=Parts(
            cudagraph_mode=CUDAGraphMode[mode], cudagraph_capture_sizes=[1, 2, 4]
        ),
        use_v2_model_runner=second,
    )
    found = graphs.read_graphs(config)
    assert (found and found.widths) == widths
