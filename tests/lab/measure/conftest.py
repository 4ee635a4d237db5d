"""A stand-in server on a real port for every test of this folder that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clients.local_server import serve_in_thread
from tests.lab.measure.stand_in_server import StandInServer


@pytest.fixture
def start_server() -> Iterator:
    """Starts a stand-in and gives its URL."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(serve_in_thread(server.app()))


@pytest.fixture
def server() -> StandInServer:
    return StandInServer()


@pytest.fixture
def url(server, start_server) -> str:
    return start_server(server)
