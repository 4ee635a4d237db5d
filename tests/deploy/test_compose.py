"""compose.yaml mounts what exists, and its parts find each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from eaglegate.server.cli.listener import LAST_WORDS_S
from eaglegate.server.http.connection import CLOSE_S
from eaglegate.server.settings import Settings

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


def mounted(service: str) -> dict[str, str]:
    """Path in the container -> path in the repository."""
    parts = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {part[1]: part[0] for part in parts if part[0].startswith("./")}


def test_mounted_folders_exist_and_are_read_only():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, _, *mode = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).is_dir(), source
                assert mode == ["ro"]


def test_prometheus_reaches_the_gateway():
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert SERVICES["prometheus"]["network_mode"] == "service:gateway"
    assert targets == [f"localhost:{Settings().port}"]
    assert mounted("prometheus") == {"/etc/prometheus": "./deploy/prometheus"}


def test_the_gateway_answers_to_its_names():
    gateway = SERVICES["gateway"]
    allowed = gateway["environment"]["EAGLEGATE_ALLOWED_HOSTS"].split(",")
    aliases = gateway["networks"]["default"]["aliases"]
    assert {"gateway", *aliases} - {"prometheus"} == set(allowed)


def test_grafana_reaches_prometheus():
    path = ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml"
    url = yaml.safe_load(path.read_text())["datasources"][0]["url"]
    aliases = SERVICES["gateway"]["networks"]["default"]["aliases"]
    assert url in [f"http://{alias}:9090" for alias in aliases]


def test_the_gateway_may_finish_what_it_runs():
    grace = float(SERVICES["gateway"]["stop_grace_period"].removesuffix("s"))
    assert grace > Settings().drain_s + LAST_WORDS_S + CLOSE_S


@pytest.mark.parametrize("service", SERVICES)
def test_services_are_confined(service):
    made = SERVICES[service]
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in made["security_opt"]
    for port in made.get("ports", ()):
        assert port.startswith("127.0.0.1:")
