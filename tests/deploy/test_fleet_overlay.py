"""The overlay with gateways in front of workers."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from tests.deploy.overlays import container, gateway, needs_kustomize, only, rendered, templates

pytestmark = [pytest.mark.thorough, needs_kustomize]


def test_a_fleets_gateways_find_its_workers_by_name():
    (service,) = (
        item
        for item in rendered("fleet")
        if item["kind"] == "Service" and item["metadata"]["name"] == "eaglegate-workers"
    )
    assert service["spec"]["clusterIP"] == "None", "the name must lead to every pod"
    assert not service["spec"].get("publishNotReadyAddresses")
    worker = templates("fleet")["worker"]
    assert service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    (port,) = container(worker["spec"])["ports"]
    arguments = container(gateway("fleet"))["args"]
    dns = arguments[arguments.index("--upstream-dns") + 1]
    assert dns == f"{service['metadata']['name']}:{port['containerPort']}"
    assert f"--port={port['containerPort']}" in container(worker["spec"])["args"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]


def test_a_fleets_workers_run_what_its_gateways_render():
    theirs, ours = (container(templates("fleet")[part]["spec"]) for part in ("worker", "gateway"))
    assert theirs["args"][0] == ours["args"][1]
    assert {"--enable-scale-out", "--enable-prompt-tokens-details"} <= set(theirs["args"])
    assert theirs["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in ours["resources"]["limits"]
    keys = {
        item["name"]: item["valueFrom"]["secretKeyRef"]
        for made in (theirs, ours)
        for item in made["env"]
        if item["name"] in ("VLLM_API_KEY", "EAGLEGATE_UPSTREAM_KEY")
    }
    assert keys["VLLM_API_KEY"] == keys["EAGLEGATE_UPSTREAM_KEY"]


def test_the_canary_is_a_worker_with_another_draft():
    """The draft is the only difference, so that it alone is compared."""
    parts = ("worker", "worker-canary")
    plain, canary = deepcopy([templates("fleet")[part]["spec"] for part in parts])
    spread = [pod.pop("topologySpreadConstraints") for pod in (plain, canary)]
    assert [
        {one["labelSelector"]["matchLabels"]["track"] for one in constraints}
        for constraints in spread
    ] == [{"stable"}, {"canary"}]
    args = [container(pod).pop("args") for pod in (plain, canary)]
    changed = [at for at, (one, other) in enumerate(zip(*args, strict=True)) if one != other]
    assert [args[0][at - 1] for at in changed] == ["--speculative-config"]
    drafts = [json.loads(one[changed[0]]) for one in args]
    assert drafts[0].pop("model") != drafts[1].pop("model")
    assert drafts[0] == drafts[1]
    assert plain == canary


def test_neither_deployment_selects_the_pods_of_the_other():
    names = ("eaglegate-worker", "eaglegate-worker-canary")
    specs = [only("fleet", "Deployment", name)["spec"] for name in names]
    selectors = [spec["selector"]["matchLabels"].items() for spec in specs]
    labels = [spec["template"]["metadata"]["labels"].items() for spec in specs]
    matches = [[selector <= one for one in labels] for selector in selectors]
    assert matches == [[True, False], [False, True]]


def test_only_gateways_speak_to_workers():
    worker = templates("fleet")["worker"]
    labels = worker["metadata"]["labels"].items()
    ports = {port["name"] for port in container(worker["spec"])["ports"]}
    policies = [item["spec"] for item in rendered("fleet") if item["kind"] == "NetworkPolicy"]
    rules = [
        rule
        for policy in policies
        if policy["podSelector"]["matchLabels"].items() <= labels
        for rule in policy["ingress"]
        if ports & {port["port"] for port in rule["ports"]}
    ]
    assert len(rules) == 1
    (source,) = rules[0]["from"]
    assert source == {
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/name": "eaglegate",
                "app.kubernetes.io/component": "gateway",
            }
        }
    }
