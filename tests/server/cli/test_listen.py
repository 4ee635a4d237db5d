"""The port is taken first, and a busy one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_an_address_of_another_machine_is_named():
    before = count_descriptors()
    with pytest.raises(ConfigError, match=r"cannot listen on --host 192\.0\.2\.1") as refusal:
        bind("192.0.2.1", 0)
    # The traceback keeps the function's variables alive, so only a closed socket is gone.
    assert refusal.traceback
    assert count_descriptors() == before


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))
