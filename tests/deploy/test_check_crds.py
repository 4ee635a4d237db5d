"""The check of custom resources: finds what a definition does not know, and fails on nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SINGLE = [ROOT / "deploy/kubernetes/overlays/single-gpu"]
ROUTE = {
    "kind": "CustomResourceDefinition",
    "spec": {
        "group": "gateway.networking.k8s.io",
        "names": {"kind": "HTTPRoute"},
        "versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}}],
    },
}


@pytest.fixture
def check():
    path = ROOT / "scripts/check_crds.py"
    spec = importlib.util.spec_from_file_location("check_crds", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def define(folder: Path, **properties: dict[str, object]) -> None:
    schema = ROUTE["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"] = {name: {"type": "object"} for name in ("metadata", "spec")} | properties
    (folder / "route.yaml").write_text(yaml.safe_dump(ROUTE))


TEXT = {"type": "string"}


def test_known_fields_pass(check, tmp_path, capsys):
    define(tmp_path, kind=TEXT, apiVersion=TEXT)
    assert check.main(tmp_path, SINGLE) == 0
    assert "against HTTPRoute: 0 wrong" in capsys.readouterr().out


def test_an_unknown_field_fails(check, tmp_path, capsys):
    define(tmp_path, kind=TEXT)
    assert check.main(tmp_path, SINGLE) == 1
    assert "apiVersion" in capsys.readouterr().out


def test_an_empty_set_of_resources_fails(check, tmp_path):
    assert check.main(tmp_path, SINGLE) == 1
