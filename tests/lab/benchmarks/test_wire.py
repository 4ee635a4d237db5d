"""The servers that the benchmark of the wire puts beside this gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from eaglegate.lab.benchmarks import wire

NOWHERE = Path("nowhere")


def test_every_server_is_the_first_of_as_many_rounds() -> None:
    servers = [wire.Server(name, "", 0) for name in "abc"]
    rounds = ["".join(one.name for one in wire.take_turns(servers, at)) for at in range(6)]
    assert rounds == ["abc", "bca", "cab", "cba", "acb", "bac"]


@pytest.mark.slow
def test_the_floor_streams_and_answers() -> None:
    with wire.run_server("floor", NOWHERE, NOWHERE) as server:
        assert wire.answers(server.url)
        cost, chunks = asyncio.run(wire.load(server, wire.Load(2, 2, 24)))
    assert cost > 0
    assert 0.2 < chunks <= 1.2
