"""Equal widths for all requests, if different widths cost a step its FULL graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from eaglegate.engine.speculation.planner.probes import Optimum
from eaglegate.engine.speculation.planner.step_cost import StepCostModel
from eaglegate.engine.speculation.planner.step_graphs import GraphMode, StepGraphs


def prefer_uniform(
    optimum: Optimum, floors: Sequence[int], cost: StepCostModel, last_depth: int, gain: float
) -> Optimum:
    """Return ``optimum``, or one depth with a FULL graph for all requests if its rate is higher.

    Requests near the end of their answer verify as many tokens as the others, because undeliverable
    tokens cost less than the graph. ``last_depth`` is the depth in use. It is kept unless
    another one is better by the share ``gain``.
    """
    graphs = cost.graphs
    if graphs is None:
        return optimum
    batch = len(optimum.bounds)
    depths = np.arange(cost.depth + 1)
    seconds = cost.seconds(batch, depths * float(batch))
    tokens = batch + np.concatenate([[0.0], np.cumsum(optimum.survival.sum(axis=0))])
    rates = tokens / seconds
    rate, depth = _compute_rate(optimum), None
    for candidate in _list_depths(graphs, floors, batch):
        candidate_rate = float(rates[candidate]) * (1 + gain * (candidate == last_depth))
        if candidate_rate >= rate * (1 - gain * (depth is None)):
            rate, depth = candidate_rate, candidate
    if depth is None:
        return optimum
    widths = np.full(batch, depth)
    return replace(optimum, depth=depth, widths=widths, rates=rates)


def _list_depths(graphs: StepGraphs, floors: Sequence[int], batch: int) -> Iterator[int]:
    """Yield the depths with a FULL graph that all requests may have, including those with their own
    depth."""
    requested_depths = set(floors) - {0}
    for depth in graphs.widths:
        if graphs.find_mode([depth] * batch) is GraphMode.FULL and requested_depths <= {depth}:
            yield depth


def _compute_rate(optimum: Optimum) -> float:
    """Return the tokens per second of the best plan with its own widths."""
    batch, positions = len(optimum.bounds), np.arange(1, optimum.depth + 1)
    survival = optimum.survival[:, : optimum.depth] * (positions <= optimum.widths[:, None])
    return float(batch + survival.sum()) / optimum.get_seconds(optimum.widths, optimum.depth)
