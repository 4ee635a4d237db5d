"""Every overlay renders, fits the schemas of Kubernetes, and keeps the promises of docs/deploy.md.

Custom resources have no schema here (kubernetes-validate knows Kubernetes' own kinds); their fields
that matter are asserted one by one. The pods of the LeaderWorkerSet are validated as pods.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import subprocess

import kubernetes_validate
import pytest

from eaglegate.server.access.auth import OPEN_PATHS
from eaglegate.server.cli.feature_table import list_settings_classes
from eaglegate.server.cli.listener import LAST_WORDS_S
from eaglegate.server.flags import ENV_PREFIX
from eaglegate.server.http.connection import CLOSE_S
from eaglegate.server.settings import Settings
from tests.deploy.overlays import (
    CUSTOM,
    EVERY_POD,
    FOLDER,
    OVERLAYS,
    ROOT,
    VERSIONS,
    WITH_GPU,
    container,
    gateway,
    needs_kustomize,
    only,
    rendered,
    settings,
    templates,
)

pytestmark = [pytest.mark.thorough, needs_kustomize]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_fit_the_schemas(overlay, version):
    known = [item for item in rendered(overlay) if item["kind"] not in CUSTOM]
    assert len(known) >= 6
    for item in known:
        kubernetes_validate.validate(item, version, strict=True)
    for template in templates(overlay).values():
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        kubernetes_validate.validate(pod, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_tell_the_truth(overlay):
    made = container(gateway(overlay))
    paths = {name: made[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert paths["startup"]["path"] == paths["readiness"]["path"] == "/ready"
    assert paths["liveness"]["path"] == "/health"
    assert {probe["path"] for probe in paths.values()} <= OPEN_PATHS, "probes carry no key"
    assert {probe["port"] for probe in paths.values()} == {"api"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_may_finish_what_it_runs(overlay):
    pod = gateway(overlay)
    before_s = container(pod)["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = float(settings(overlay)["EAGLEGATE_DRAIN_S"])
    assert before_s >= 5
    assert pod["terminationGracePeriodSeconds"] > before_s + drain_s + LAST_WORDS_S + CLOSE_S


def test_workers_outlive_their_leader():
    pods = {part: template["spec"] for part, template in templates("multi-node").items()}
    leader, worker = pods["gateway"], pods["worker"]
    slept = container(worker)["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = float(settings("multi-node")["EAGLEGATE_DRAIN_S"])
    first = container(leader)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert first + drain_s + LAST_WORDS_S + CLOSE_S < slept
    assert slept < worker["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(("overlay", "part"), EVERY_POD)
def test_pods_are_confined(overlay, part):
    pod = templates(overlay)[part]["spec"]
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["fsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not any("hostPath" in volume for volume in pod["volumes"])


@pytest.mark.parametrize(("overlay", "part"), EVERY_POD)
def test_pods_have_the_folders_that_they_write_to(overlay, part):
    pod = templates(overlay)[part]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {
        mount["mountPath"]: volumes[mount["name"]] for mount in container(pod)["volumeMounts"]
    }
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert mounts["/tmp"]["emptyDir"]["sizeLimit"]
    assert set(volumes) == {mount["name"] for mount in container(pod)["volumeMounts"]}
    if overlay in WITH_GPU:
        claim = mounts["/models"]["persistentVolumeClaim"]["claimName"]
        assert only(overlay, "PersistentVolumeClaim", claim)
        home = {item["name"]: item.get("value") for item in container(pod)["env"]}["HF_HOME"]
        assert home == "/models"


@pytest.mark.parametrize("overlay", WITH_GPU)
def test_secrets_come_from_secrets(overlay):
    pod = gateway(overlay)
    (keys,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    mount = next(m for m in container(pod)["volumeMounts"] if m["name"] == "keys")
    token = next(item for item in container(pod)["env"] if item["name"] == "HF_TOKEN")
    assert keys["secretName"] == "eaglegate-keys"
    assert mount["readOnly"] is True
    assert settings(overlay)["EAGLEGATE_API_KEY_FILE"].startswith(mount["mountPath"])
    assert token["valueFrom"]["secretKeyRef"]["name"] == "eaglegate-hub"
    assert not any(item["kind"] == "Secret" for item in rendered(overlay))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_exist(overlay):
    for name in settings(overlay):
        if name.startswith(ENV_PREFIX):
            known = [
                name for kind in (Settings, *list_settings_classes()) for name in kind.__slots__
            ]
            assert name.removeprefix(ENV_PREFIX).lower() in known
    assert gateway(overlay)["enableServiceLinks"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_are_the_gateways(overlay):
    ports = {port["name"]: port["containerPort"] for port in container(gateway(overlay))["ports"]}
    given = settings(overlay)
    assert ports["api"] == int(given["EAGLEGATE_PORT"])
    assert ports["admin"] == int(given["EAGLEGATE_ADMIN_PORT"])
    assert given["EAGLEGATE_ADMIN_HOST"] == "0.0.0.0"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods(overlay):
    labels = templates(overlay)["gateway"]["metadata"]["labels"]
    services = [item for item in rendered(overlay) if item["kind"] == "Service"]
    selectors = [
        item["spec"]["selector"]
        for item in services
        if item["metadata"]["labels"].get("app.kubernetes.io/component") != "worker"
    ]
    selectors.append(only(overlay, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"])
    assert len(selectors) == 3
    for selector in selectors:
        assert selector.items() <= labels.items()


TUNER = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "eaglegate-improve"}}}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_admin_port_is_for_monitoring_and_the_tuner_alone(overlay):
    policies = [item["spec"] for item in rendered(overlay) if item["kind"] == "NetworkPolicy"]
    rules = [rule for policy in policies for rule in policy["ingress"]]
    assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies)
    for rule in rules:
        ports = {port["port"] for port in rule.get("ports", ())}
        (source,) = rule["from"]
        if "admin" in ports and source != TUNER:
            wanted = {"kubernetes.io/metadata.name": "monitoring"}
            assert source["namespaceSelector"]["matchLabels"] == wanted
        if not ports:
            assert "namespaceSelector" not in source, "all ports are for the group's own pods"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_who_downloads_models_reaches_the_internet_and_nobody_private_networks(overlay):
    policies = [item for item in rendered(overlay) if item["kind"] == "NetworkPolicy"]
    rules = [(one["metadata"]["name"], rule) for one in policies for rule in one["spec"]["egress"]]
    outside = [(name, rule) for name, rule in rules if any("ipBlock" in to for to in rule["to"])]
    downloads = overlay not in ("cpu-demo", "improve")
    assert [name for name, _ in outside] == ["eaglegate-hub"] * downloads
    for _, rule in outside:
        assert rule["ports"] == [{"protocol": "TCP", "port": 443}]
        (block,) = (to["ipBlock"] for to in rule["to"])
        reached = [ipaddress.ip_network(block["cidr"])]
        for cidr in block["except"]:
            apart = ipaddress.ip_network(cidr)
            reached = [
                part
                for one in reached
                for part in (one.address_exclude(apart) if apart.subnet_of(one) else [one])
            ]
        for address in ("10.1.2.3", "172.20.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254"):
            assert not any(ipaddress.ip_address(address) in one for one in reached)


@pytest.mark.parametrize("overlay", WITH_GPU)
def test_prometheus_finds_the_metrics(overlay):
    monitor = only(overlay, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [item for item in rendered(overlay) if item["kind"] == "Service"]
    (found,) = (item for item in services if wanted <= item["metadata"]["labels"].items())
    (endpoint,) = monitor["endpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["port"] in {port["name"] for port in found["spec"]["ports"]}
    job = found["metadata"]["labels"][monitor["jobLabel"]]
    assert job == "eaglegate", "as the alerts have it"
    assert found["spec"]["publishNotReadyAddresses"] is True


def test_the_rules_are_prometheus_own():
    spec = importlib.util.spec_from_file_location("rule_writer", FOLDER / "generate.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert writer.WRITTEN.read_text(encoding="utf-8") == writer.rendered()
    names = [group["name"] for group in writer.groups()]
    assert len(names) == len(set(names))
    for overlay in WITH_GPU:
        assert only(overlay, "PrometheusRule")["spec"]["groups"] == writer.groups()


@pytest.mark.parametrize("overlay", [name for name in WITH_GPU if name != "improve"])
def test_gateways_scale_on_waiting_requests_and_late_tokens(overlay):
    scaler = only(overlay, "ScaledObject")["spec"]
    target = scaler["scaleTargetRef"]
    assert any(
        (item["apiVersion"], item["kind"], item["metadata"]["name"])
        == (target["apiVersion"], target["kind"], target["name"])
        for item in rendered(overlay)
    )
    queries = {trigger["name"]: trigger["metadata"]["query"] for trigger in scaler["triggers"]}
    documented = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    recorded = (ROOT / "deploy/prometheus/rules/recording.yml").read_text(encoding="utf-8")
    assert set(queries) == {"queue-depth", "ttft-p95"}
    for name in re.findall(r"eaglegate\w*:?[\w:]*(?=[{)])", " ".join(queries.values())):
        assert f"record: {name}\n" in recorded or f"`{name}`" in documented, name


@pytest.mark.parametrize("overlay", [name for name in WITH_GPU if name not in ("fleet", "improve")])
def test_the_gpus_are_as_many_as_the_shards(overlay):
    pods = [template["spec"] for template in templates(overlay).values()]
    limits = [int(container(pod)["resources"]["limits"]["nvidia.com/gpu"]) for pod in pods]
    arguments = container(gateway(overlay))["args"]
    flag = "--tensor-parallel-size"
    shards = int(arguments[arguments.index(flag) + 1]) if flag in arguments else 1
    assert sum(limits) == shards


def test_a_group_is_one_ray_cluster_and_one_unit():
    group = only("multi-node", "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert group["size"] == len(templates("multi-node"))
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    scripts = only("multi-node", "ConfigMap")
    for part, script in (("gateway", "leader.sh"), ("worker", "worker.sh")):
        pod = templates("multi-node")[part]["spec"]
        assert container(pod)["command"] == ["tini", "--", "bash", f"/etc/eaglegate/ray/{script}"]
        mounted = [one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one]
        assert mounted == [scripts["metadata"]["name"]]
        checked = subprocess.run(
            ["bash", "-n"], input=scripts["data"][script], capture_output=True, text=True
        )
        assert checked.returncode == 0, checked.stderr
    arguments = container(gateway("multi-node"))["args"]
    assert arguments[arguments.index("--distributed-executor-backend") + 1] == "ray"
    assert "\nray==" in (ROOT / "requirements/cuda.lock").read_text(encoding="utf-8")
