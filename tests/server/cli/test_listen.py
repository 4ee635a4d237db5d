"""The port is taken first, and a busy one is named."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest

from eaglegate.engine.machine import is_port_free
from eaglegate.server.cli.listener import bind, format_url
from eaglegate.server.errors import ConfigError


def test_a_busy_port_is_named():
    first = bind("127.0.0.1", 0)
    try:
        port = first.getsockname()[1]
        assert format_url(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)
    finally:
        first.close()


def test_a_shared_port_takes_a_second_listener():
    with bind("127.0.0.1", 0, shared=True) as first:
        port = first.getsockname()[1]
        assert not is_port_free("127.0.0.1", port)
        assert is_port_free("127.0.0.1", port, shared=True)
        with pytest.raises(ConfigError, match="or start each with --reuse-port"):
            bind("127.0.0.1", port)
        with bind("127.0.0.1", port, shared=True) as second:
            took = {take(port, first, second) for _ in range(40)}
    assert took == {first, second}


def take(port, *listeners):
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        (ready,) = select.select(listeners, (), (), 5)[0]
        ready.accept()[0].close()
    return ready


def test_an_address_of_another_machine_is_named():
    before = count_descriptors()
    with pytest.raises(ConfigError, match=r"cannot listen on --host 192\.0\.2\.1") as refusal:
        bind("192.0.2.1", 0)
    # The traceback keeps the function's variables alive, so only a closed socket is gone.
    assert refusal.traceback
    assert count_descriptors() == before


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))
