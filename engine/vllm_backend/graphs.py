"""CUDA graphs for the depths that occur: their declaration to vLLM, and the batches that find a
graph.

vLLM captures FULL graphs for batches in which every request verifies the same number of drafts, and
only for the depths in ``num_speculative_tokens_per_batch_size``. It reads that table literally, as
one depth per batch size up to ``max_num_seqs``. The gateway's scheduler decides on depths, so the
batch sizes declared here have no meaning. All other batches run piecewise, which is slower.

vLLM only looks at the next larger size. If that size belongs only to another depth, the batch finds
no graph. Therefore the tokens of a request, depth + 1, divide K + 1 at every chosen depth, and
sizes are multiples of K + 1, except for the smallest sizes and the sizes of a full batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.config import CUDAGraphMode, VllmConfig

from eaglegate.engine.speculation.planner.step_graphs import StepGraphs

MAX_BATCH_SIZE = 1 << 20
"""Last batch size of the last depth."""
MAX_GRAPH_TOKENS = 512
"""Tokens of the largest batch that vLLM captures by default."""
STRIDE = 8
"""Least number of tokens between captured sizes, as in vLLM's own list."""
COARSE_FROM = 256
"""Number of tokens from which sizes are twice as far apart."""
MAX_DEPTHS = 4
"""Most depths to capture, because each adds a full set of graphs."""

Table = list[tuple[int, int, int]]


def choose_depths(max_depth: int, depth: int | None = None) -> list[int]:
    """Return the depths to capture, the most important one last.

    ``depth`` is the depth of requests without their own; None if the planner chooses it.

    >>> choose_depths(7), choose_depths(5), choose_depths(4), choose_depths(7, depth=2)
    ([0, 1, 3, 7], [0, 1, 2, 5], [0, 4], [2])
    """
    if depth is not None:
        return [depth]
    divisor_depths = [
        length - 1 for length in range(1, max_depth + 1) if (max_depth + 1) % length == 0
    ]
    return [*divisor_depths[: MAX_DEPTHS - 1], max_depth]


def declare_depths(depths: Sequence[int], max_num_seqs: int | None = None) -> Table:
    """Return ``depths`` in vLLM's notation, (first batch size, last batch size, depth).

    If ``max_num_seqs`` is smaller than the number of depths, only the last depth and the first
    others that fit are declared.

    >>> declare_depths([0, 1, 3]), declare_depths([0, 1, 3], max_num_seqs=2)
    ([(1, 1, 0), (2, 2, 1), (3, 1048576, 3)], [(1, 1, 0), (2, 1048576, 3)])
    """
    *other_depths, last_depth = depths
    other_depths = other_depths[: (max_num_seqs or MAX_BATCH_SIZE) - 1]
    entries = [(size, size, depth) for size, depth in enumerate(other_depths, start=1)]
    return [*entries, (len(entries) + 1, MAX_BATCH_SIZE, last_depth)]


def is_declaration(table: Sequence[Sequence[int]]) -> bool:
    """Return True if the gateway made the table, False if the user bounds depths with it."""
    declaration = declare_depths([depth for *_, depth in table])
    return [tuple(entry) for entry in table] == declaration


def choose_sizes(depths: Sequence[int], max_num_seqs: int | None = None) -> list[int]:
    """Return the sizes to capture, in tokens, so that every batch at these depths has a graph.

    >>> choose_sizes([0, 1, 2, 5])[:18]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 24, 36, 48, 60, 72, 84]
    """
    lengths = [depth + 1 for depth in depths]
    stride = lengths[-1] * -(-STRIDE // lengths[-1])
    sizes = {*range(1, 2 * lengths[-1] + 1), *range(stride, COARSE_FROM + 1, stride)}
    sizes |= {*range(2 * stride, MAX_GRAPH_TOKENS + 1, 2 * stride)}
    full_sizes = {(max_num_seqs or 0) * length for length in lengths}
    return sorted(
        _add_neighbours(
            {size for size in sizes | full_sizes if 0 < size <= MAX_GRAPH_TOKENS}, lengths
        )
    )


def read_graphs(vllm_config: VllmConfig) -> StepGraphs | None:
    """Return the graphs that vLLM captures; None if equal widths make no step faster.

    That is so on a CPU, with the first model runner and several depths, and if every step has a
    FULL graph.
    """
    speculation, compilation = vllm_config.speculative_config, vllm_config.compilation_config
    mode, sizes = compilation.cudagraph_mode, compilation.cudagraph_capture_sizes
    if speculation is None or mode is None or not sizes:
        return None
    if mode.decode_mode() != CUDAGraphMode.FULL or mode.mixed_mode() == CUDAGraphMode.FULL:
        return None
    table = speculation.num_speculative_tokens_per_batch_size
    if table and not vllm_config.use_v2_model_runner:
        return None
    widths = {depth for *_, depth in table} if table else {speculation.num_speculative_tokens}
    return StepGraphs(tuple(sorted(widths)), tuple(sorted(sizes)))


def _add_neighbours(sizes: set[int], lengths: Sequence[int]) -> set[int]:
    """Add the next lower and higher size of every length, and their neighbours, to ``sizes``."""
    lower_sizes = {size // length * length for size in sizes for length in lengths} - {0}
    higher_sizes = {-(-size // length) * length for size in sizes for length in lengths}
    all_sizes = sizes | lower_sizes | higher_sizes
    return sizes if all_sizes == sizes else _add_neighbours(all_sizes, lengths)
