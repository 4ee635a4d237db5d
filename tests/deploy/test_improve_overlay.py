"""The overlay whose draft is tuned on its own traffic."""

from __future__ import annotations

import pytest

from eaglegate.features.canary.routes import CanaryModel
from eaglegate.lab.improve.config import read_config
from tests.deploy.overlays import (
    container,
    gateway,
    needs_kustomize,
    only,
    rendered,
    settings,
    templates,
)

pytestmark = [pytest.mark.thorough, needs_kustomize]


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "improve.yaml"
    file.write_text(only("improve", "ConfigMap", "eaglegate-improve")["data"]["improve.yaml"])
    return read_config(file)


def test_the_loop_accepts_its_configuration(config):
    (flag, path, once) = container(templates("improve")["tuner"]["spec"])["args"][1:]
    assert (flag, once) == ("--config", "--once")
    mounts = mounts_of(templates("improve")["tuner"]["spec"])
    assert path == f"{mounts['config']}/improve.yaml"
    CanaryModel.model_validate({"path": "/draft", **config.canary})


def test_gateway_and_tuner_see_the_same_folders(config):
    pods = gateway("improve"), templates("improve")["tuner"]["spec"]
    assert mounts_of(pods[0])["drafts"] == mounts_of(pods[1])["drafts"] == "/drafts"
    assert str(config.capture) == settings("improve")["EAGLEGATE_CAPTURE"]
    assert str(config.state).startswith("/drafts/")
    assert settings("improve")["EAGLEGATE_DRAFT_STORE"].startswith("/drafts/")
    assert str(config.target) == container(pods[0])["args"][1]
    claims = [claims_of(pod)["drafts"] for pod in pods]
    assert claims == ["eaglegate-drafts"] * 2


def mounts_of(pod):
    return {mount["name"]: mount["mountPath"] for mount in container(pod)["volumeMounts"]}


def claims_of(pod):
    return {
        volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName")
        for volume in pod["volumes"]
    }


def test_the_tuner_reaches_the_admin_port(config):
    service = only("improve", "Service", "eaglegate-admin")
    (port,) = service["spec"]["ports"]
    assert config.serve == f"http://eaglegate-admin:{port['port']}"
    assert settings("improve")["EAGLEGATE_ALLOWED_HOSTS"] == "eaglegate-admin"
    labels = templates("improve")["tuner"]["metadata"]["labels"].items()
    policies = [item["spec"] for item in rendered("improve") if item["kind"] == "NetworkPolicy"]
    opened = [
        rule["ports"]
        for policy in policies
        for rule in policy["ingress"]
        for source in rule["from"]
        if source.get("podSelector", {"matchLabels": {"": ""}})["matchLabels"].items() <= labels
    ]
    assert opened == [[{"protocol": "TCP", "port": "admin"}]]


def test_one_pod_serves_and_one_tunes():
    job = only("improve", "CronJob")["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    assert job["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert only("improve", "Deployment")["spec"]["replicas"] == 1
    assert not any(item["kind"] == "ScaledObject" for item in rendered("improve"))
