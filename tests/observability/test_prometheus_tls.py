"""A real Prometheus scrapes a gateway that speaks TLS, by the configuration that is shipped."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import yaml

from eaglegate.engine.remote.probe import PROBE
from eaglegate.text.rendering.renderer import ModelFiles, TemplateRenderer
from tests import workers
from tests.conftest import ROOT
from tests.conftest import serving as serving_gateway
from tests.engine.remote.stand_in_worker import StandIn, chunk, end
from tests.engine.remote.stand_in_worker import serving as serving_worker
from tests.server.cli.test_tls import self_signed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Prometheus"),
]
SHIPPED = ROOT / "deploy" / "prometheus" / "prometheus-tls.yml"
SCRAPE_S = 60.0


def write_config(folder: Path, target: str) -> Path:
    """The shipped file with the port of the test, scraping every second."""
    config = yaml.safe_load(SHIPPED.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"] = [target]
    path = folder / SHIPPED.name
    path.write_text(yaml.safe_dump(config))
    shutil.copytree(SHIPPED.parent / "rules", folder / "rules")
    return path


def is_scraped(config: Path) -> bool:
    """Whether a Prometheus with this configuration reads the gateway's metrics in time."""
    address = f"127.0.0.1:{workers.free_port()}"
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + SCRAPE_S
        while time.monotonic() < deadline:
            if has_samples(f"http://{address}"):
                return True
            time.sleep(0.2)
        return False
    finally:
        process.terminate()
        process.wait(20)


def has_samples(address: str) -> bool:
    with suppress(httpx.TransportError):
        found = httpx.get(f"{address}/api/v1/query", params={"query": "eaglegate_worker_state"})
        return found.is_success and bool(found.json()["data"]["result"])
    return False


async def test_the_shipped_file_scrapes_a_gateway_that_speaks_tls(tmp_path):
    certificate = self_signed(tmp_path / "ca.pem")
    renderer = TemplateRenderer(ModelFiles.find(workers.MODEL, None, None))
    worker = StandIn(tokens=renderer.encode(PROBE, False), speculates=False)
    worker.script = lambda body: [chunk(5, finish="length"), end(told=False)]
    async with serving_worker(worker.app()) as url:
        tls = f"--ssl-certfile={certificate}"
        arguments = (*workers.GATEWAY, f"--upstream={url}", tls, "--log-format=json")
        running = serving_gateway(tmp_path / "serve.log", arguments)
        gateway = await asyncio.to_thread(running.__enter__)
        try:
            config = write_config(tmp_path, gateway.operator.removeprefix("https://"))
            assert await asyncio.to_thread(is_scraped, config)
        finally:
            await asyncio.to_thread(running.__exit__, None, None, None)
