"""The files of deploy/pod: their flags, variables and gauges exist, and docs/pod.md lists them."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml

from eaglegate.engine.vllm_contract import POD_SCHEDULER
from eaglegate.features.pod.engine.gauges import PodCollector
from eaglegate.features.pod.engine.settings import PREFIX, PodSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/pod"
PAGE = (ROOT / "docs/pod.md").read_text("utf-8")
SETTINGS = {field.name for field in fields(PodSettings)}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))


def list_pod_metrics() -> dict[str, str]:
    """The names of a pod's metrics, and their kinds."""
    families = PodCollector(SimpleNamespace(read=dict), {}).collect()
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in families
    }


def find_container(name: str) -> dict[str, Any]:
    """The container that a file describes, its arguments as ``vllm serve`` gets them."""
    made = read(name)
    if name == "production-stack":
        (model,) = made["servingEngineSpec"]["modelSpec"]
        return {"args": model["vllmConfig"]["extraArgs"], "env": model["env"]}
    inside = made["inference"] if name == "kaito" else made["spec"]
    pod = inside["template"].get("spec", inside["template"])
    container = pod["containers"][0]
    if name == "kserve":
        extra = {item["name"]: item["value"] for item in container["env"]}["VLLM_ADDITIONAL_ARGS"]
        container["args"] = shlex.split(extra)
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
    kubernetes_validate.validate(whole, "1.37", strict=True)
    return container


@pytest.mark.parametrize("name", ["kserve", "kaito", "production-stack"])
def test_a_pod_has_the_flag_a_draft_and_known_settings(name: str) -> None:
    container = find_container(name)
    words = [word for argument in container["args"] for word in argument.split("=", 1)]
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert flags["--scheduler-cls"] == POD_SCHEDULER
    speculation = json.loads(flags["--speculative-config"])
    assert speculation.keys() == {"method", "model", "num_speculative_tokens"}
    ours = {item["name"]: item["value"] for item in container["env"] if PREFIX in item["name"]}
    assert ours
    assert {variable.removeprefix(PREFIX).lower() for variable in ours} <= SETTINGS
    PodSettings.read({}, ours)


def test_the_picker_reads_a_gauge_that_exists() -> None:
    made = read("llm-d")
    plugins = {plugin.get("name", plugin["type"]): plugin for plugin in made["plugins"]}
    (engine,) = plugins["core-metrics-extractor"]["parameters"]["engineConfigs"]
    (metric,) = engine["customMetrics"]
    assert list_pod_metrics()[metric["metricSpec"]] == "gauge"
    scorer = plugins["acceptance-scorer"]["parameters"]
    assert scorer["attributeKey"] == metric["attributeKey"]
    assert scorer["algorithm"]["type"] == "linear_higher_is_better"
    (profile,) = made["schedulingProfiles"]
    assert {row["pluginRef"] for row in profile["plugins"]} <= plugins.keys()


def test_the_page_lists_settings_gauges_and_files() -> None:
    for name in SETTINGS:
        assert f"| `{PREFIX}{name.upper()}` | `{name}` |" in PAGE
    for name in list_pod_metrics():
        assert f"| `{name.removeprefix('eaglegate_pod_')}` |" in PAGE
    for path in FOLDER.iterdir():
        assert path.name in PAGE
