"""Forwarded headers count from named proxies only."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx
import orjson
import pytest

from eaglegate.server.cli.listener import GatewayServer
from eaglegate.server.http.connection import TlsSettings, make_server_config
from eaglegate.server.http.connection_limits import ConnectionLimiter, ConnectionLimits
from eaglegate.server.http.response import send_json

CLAIM = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}


async def tell(scope, receive, send):
    body = orjson.dumps([scope["client"][0], scope["scheme"]])
    await send_json(send, 200, body)


@asynccontextmanager
async def served(proxies):
    limits = ConnectionLimits.of(1024, proxies=proxies)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = GatewayServer(
            make_server_config(tell, TlsSettings(), limits.proxies), ConnectionLimiter(limits)
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest.mark.thorough
@pytest.mark.parametrize("proxies", [(), ("10.0.0.0/8",), ("192.0.2.1,192.0.2.2",)])
async def test_a_proxy_without_a_name_is_not_believed(proxies, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with served(proxies) as url, httpx.AsyncClient() as client:
        assert (await client.get(url, headers=CLAIM)).json() == ["127.0.0.1", "http"]


@pytest.mark.thorough
@pytest.mark.parametrize("proxies", [("127.0.0.1",), ("10.0.0.0/8,127.0.0.0/8",), ("*",)])
async def test_a_named_proxy_is(proxies):
    async with served(proxies) as url, httpx.AsyncClient() as client:
        assert (await client.get(url, headers=CLAIM)).json() == ["203.0.113.9", "https"]
