"""The Kubernetes overlays as kustomize renders them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
WITH_GPU = [name for name in OVERLAYS if name != "cpu-demo"]
VERSIONS = ("1.30", "1.37")
"""Oldest that knows all we use (preStop sleep), and the newest whose schemas we have."""
CUSTOM = {"HTTPRoute", "LeaderWorkerSet", "PrometheusRule", "ScaledObject", "ServiceMonitor"}

Object = dict[str, Any]


def _kustomize() -> list[str] | None:
    """A kustomize of today: kubectl before 1.21 has one of 2019 inside."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl") is None:
        return None
    asked = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True)
    return ["kubectl", "kustomize"] if "Kustomize Version: v5" in asked.stdout else None


needs_kustomize = pytest.mark.skipif(
    _kustomize() is None, reason="needs kubectl 1.27 or newer, or kustomize 5"
)


@cache
def rendered(overlay: str) -> list[Object]:
    command = [*(_kustomize() or ()), str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "a warning: " + done.stderr
    return list(yaml.safe_load_all(done.stdout))


def only(overlay: str, kind: str, name: str = "") -> Object:
    """The one object of a kind, or of a name where several have it."""
    (found,) = (
        item
        for item in rendered(overlay)
        if item["kind"] == kind and name in ("", item["metadata"]["name"])
    )
    return found


def templates(overlay: str) -> dict[str, Object]:
    """The pod templates by component; that of a canary is ``worker-canary``."""
    found: list[Object] = []
    for item in rendered(overlay):
        if item["kind"] == "Deployment":
            found.append(item["spec"]["template"])
        if item["kind"] == "CronJob":
            found.append(item["spec"]["jobTemplate"]["spec"]["template"])
        if item["kind"] == "LeaderWorkerSet":
            group = item["spec"]["leaderWorkerTemplate"]
            found += [group["leaderTemplate"], group["workerTemplate"]]
    return {_name_part(one["metadata"]["labels"]): one for one in found}


def _name_part(labels: dict[str, str]) -> str:
    component = labels["app.kubernetes.io/component"]
    return f"{component}-canary" if labels.get("track") == "canary" else component


def gateway(overlay: str) -> Object:
    return templates(overlay)["gateway"]["spec"]


def container(pod: Object) -> Object:
    (one,) = pod["containers"]
    return one


def settings(overlay: str) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in container(gateway(overlay))["env"]}


EVERY_POD = [(name, part) for name in OVERLAYS for part in templates(name)] if _kustomize() else []
