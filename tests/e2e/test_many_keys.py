"""Hundreds of keys on a real engine: the planner's tables stay bounded, and so do scrapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from eaglegate.engine.speculation.planner.slice_rows import MAX_SLICES
from eaglegate.server.access.keys import hash_key
from tests.conftest import RunningGateway, serving

pytestmark = pytest.mark.slow

NAMES = [f"key-{number}" for number in range(500)]


def make_secret(name: str) -> str:
    return f"eg-{name}-secret-of-32-bytes-or-more"


def write_keys(file: Path, names: list[str]) -> None:
    entries = [
        f"- name: {name}\n  sha256: {hash_key(make_secret(name)).hex()}\n"
        for name in ("operator", *names)
    ]
    entries[0] += "  admin: true\n"
    file.write_text("keys:\n" + "".join(entries))


def connect(url: str, name: str = "operator") -> httpx.Client:
    headers = {"authorization": f"Bearer {make_secret(name)}"}
    return httpx.Client(base_url=url, headers=headers, timeout=300, verify=False)


def ask(gateway: RunningGateway, name: str, temperature: float) -> None:
    body = {"model": "demo", "prompt": "A cat", "max_tokens": 4, "temperature": temperature}
    with connect(gateway.url, name) as client:
        client.post("/v1/completions", json=body).raise_for_status()


def measure_planner(gateway: RunningGateway) -> int:
    """The size of what an open page reads of the planner, without the newest steps."""
    with connect(gateway.operator) as client:
        planner = client.get("/debug/speculation").raise_for_status().json()["planner"]
    del planner["recent"]
    assert "key-" not in str(planner)
    return len(str(planner))


def list_tenants(gateway: RunningGateway) -> list[str]:
    with connect(gateway.operator) as client:
        planner: Any = client.get("/admin/speculation").raise_for_status().json()["planner"]
    return [str(row["tenant"]) for row in planner["slices"]]


def test_keys_fill_no_table_and_are_forgotten_with_their_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    write_keys(keys, NAMES)
    arguments = (f"--api-key-file={keys}", "--lookup=7", "--no-async-scheduling")
    with serving(tmp_path / "serve.log", arguments) as gateway:
        for temperature in (0.0, 0.5, 1.5):
            ask(gateway, NAMES[0], temperature)
        before = measure_planner(gateway)
        with ThreadPoolExecutor(16) as pool:
            [*pool.map(lambda name: ask(gateway, name, 0.0), NAMES)]
            [*pool.map(lambda name: ask(gateway, name, 0.5), NAMES[:40])]
        assert measure_planner(gateway) < 1.5 * before
        tenants = list_tenants(gateway)
        assert len(tenants) == MAX_SLICES
        assert NAMES[-1] in tenants
        assert tenants.count(NAMES[5]) == 1, "the slice of its first request is gone"
        write_keys(keys, NAMES[:250])
        with connect(gateway.operator) as client:
            client.post("/admin/reload").raise_for_status()
        assert set(list_tenants(gateway)) <= {*NAMES[:250], "warm-up", ""}
