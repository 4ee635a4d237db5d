"""Every query of every panel and rule, asked of a real Prometheus that watches the demo gateway.

A panel that may rightly be empty says so in its description ("Empty ..."); a rule that needs more
history than a test has is listed here.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import pytest
import yaml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="needs Debian's prometheus (.ci/packages)"
    ),
]
ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("[!p]*.json"))
"""Those of gateways. ``pods.json`` shows series of vLLM's own server: tests/deploy/test_pods.py."""
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
NEEDS_HISTORY = {"eaglegate:acceptance_length_baseline:6h"}
"""Looks 15 minutes back and further; its arithmetic is tested with promtool."""
DRIVING_S = 90
SELECTOR = re.compile(r"\b(?:eaglegate|vllm|process)[_:][a-zA-Z0-9_:]+|\bup\b")

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
MIX = (
    {"messages": [{"role": "user", "content": "Write a short poem."}]},
    {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [TOOL],
        "tool_choice": "required",
    },
    {"messages": [{"role": "user", "content": "Which city?"}], "response_format": SCHEMA},
    {
        "messages": [
            {"role": "system", "content": "Think first."},
            {"role": "user", "content": "What is 2 + 3?"},
        ],
        "reasoning_effort": "high",
    },
    {"messages": [{"role": "user", "content": "Count to ten."}], "num_speculative_tokens": 0},
)
REFUSED = {"messages": [{"role": "user", "content": "hi"}], "temperature": -1}


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus with our rules that scrapes and evaluates every second."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(path) for path in RULES]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


async def drive(client: httpx.AsyncClient) -> None:
    """One round of everything clients do, hanging up included."""
    base = {"model": "demo", "max_tokens": 96, "temperature": 0.0}
    posts = [client.post("/v1/chat/completions", json=base | body) for body in (*MIX, REFUSED)]
    answers = await asyncio.gather(*posts)
    assert [a.status_code for a in answers] == [200] * len(MIX) + [400], [a.text for a in answers]
    body = base | MIX[0] | {"stream": True, "ignore_eos": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(4):
            await anext(lines)


class Asker:
    """Asks Prometheus and remembers which queries have had an answer."""

    def __init__(self, client: httpx.AsyncClient, queries: set[str]) -> None:
        self._client = client
        self.silent = set(queries)

    async def ask(self) -> None:
        for query in sorted(self.silent):
            answer = await self._client.get("/api/v1/query", params={"query": query})
            data = answer.json()
            assert data["status"] == "success", (query, data)
            if any(sample["value"][1] != "NaN" for sample in data["data"]["result"]):
                self.silent.discard(query)


def filled_in(expr: str) -> str:
    """The query that Grafana sends with everything selected."""
    return expr.replace("$__rate_interval", "15s").replace("$model", ".*").replace("$lane", ".*")


def panel_queries() -> tuple[set[str], set[str]]:
    """Queries that must answer, and queries whose panel says when it is empty."""
    must: set[str] = set()
    may: set[str] = set()
    for dashboard in DASHBOARDS:
        for panel in orjson.loads(dashboard.read_bytes())["panels"]:
            kind = may if "Empty " in panel.get("description", "") else must
            kind |= {filled_in(target["expr"]) for target in panel.get("targets", ())}
    return must, may - must


def rule_queries() -> tuple[set[str], set[str]]:
    """Recorded series, and every series an alert looks at: a healthy alert itself is silent."""
    groups = [g for path in RULES for g in yaml.safe_load(path.read_text())["groups"]]
    rules = [rule for group in groups for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    looked_at = {
        name for rule in rules if "alert" in rule for name in SELECTOR.findall(rule["expr"])
    }
    all_ = recorded | looked_at
    parts = ("_worker_", "planner", "_capture_", "_audit", "_draft_hold", "_diagnoses_")
    elsewhere = {name for name in all_ if any(part in name for part in parts)}
    return all_ - NEEDS_HISTORY - elsewhere, elsewhere


async def test_every_query_is_answered(demo_gateway, tmp_path):
    must, may = (
        panels | rules for panels, rules in zip(panel_queries(), rule_queries(), strict=True)
    )
    target = demo_gateway.url.removeprefix("http://")
    with prometheus(tmp_path, target) as url:
        async with (
            httpx.AsyncClient(base_url=demo_gateway.url, timeout=120) as gateway,
            httpx.AsyncClient(base_url=url, timeout=30) as asked,
        ):
            await ready(asked)
            asker = Asker(asked, must | may)
            deadline = time.monotonic() + DRIVING_S
            while asker.silent & must and time.monotonic() < deadline:
                await drive(gateway)
                await asker.ask()
            await all_rules_work(asked)
    (tmp_path / "silent.json").write_bytes(orjson.dumps(sorted(asker.silent), option=2))
    assert not asker.silent & must
    quiet = re.compile(
        "_gpu_|_worker_|_capture_|_audit|_draft_hold|_diagnoses_|planner|baseline|_losses_|_interrupted_r"
    )
    quiet_here = {query for query in may if quiet.search(query)}
    assert asker.silent <= quiet_here, "conditional, but the traffic was made to cause it"


async def ready(asked: httpx.AsyncClient) -> None:
    for _ in range(200):
        try:
            if (await asked.get("/-/ready")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError("Prometheus did not start")


async def all_rules_work(asked: httpx.AsyncClient) -> None:
    groups = (await asked.get("/api/v1/rules")).json()["data"]["groups"]
    assert groups
    for group in groups:
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule
            assert rule.get("state") != "firing", rule
