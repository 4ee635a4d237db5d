"""Forwarded headers count from named proxies only."""

from __future__ import annotations

import httpx
import orjson
import pytest

from eaglegate.server.http.connection_limits import ConnectionLimits
from eaglegate.server.http.response import send_json
from tests.server.http.conftest import serve_app

CLAIM = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}


async def tell(scope, receive, send):
    body = orjson.dumps([scope["client"][0], scope["scheme"]])
    await send_json(send, 200, body)


async def claim(proxies):
    """The address and scheme of a client that claims others."""
    limits = ConnectionLimits.of(1024, proxies=proxies)
    async with serve_app(tell, limits) as (host, port), httpx.AsyncClient() as client:
        return (await client.get(f"http://{host}:{port}", headers=CLAIM)).json()


@pytest.mark.thorough
@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8",), ("192.0.2.1,192.0.2.2",)])
async def test_a_proxy_without_a_name_is_not_believed(proxies, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert await claim(proxies) == ["127.0.0.1", "http"]


@pytest.mark.thorough
@pytest.mark.parametrize("proxies", [("127.0.0.1",), ("10.0.0.0/8,127.0.0.0/8",), ("*",)])
async def test_a_named_proxy_is(proxies):
    assert await claim(proxies) == ["203.0.113.9", "https"]
