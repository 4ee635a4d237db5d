"""An SBOM lists every package of the locks, with its hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eaglegate import __version__
from scripts import sbom


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    assert sbom.main([str(folder)]) == 0
    return folder


@pytest.mark.parametrize("image", sbom.LOCKS)
def test_every_package_and_hash_is_listed(folder: Path, image: str) -> None:
    document = json.loads((folder / f"eaglegate-{__version__}-{image}.cdx.json").read_text())
    locks = [(sbom.REQUIREMENTS / f"{name}.lock").read_text() for name in sbom.LOCKS[image]]
    pins = re.findall(r"^([\w.-]+)\S*==(\S+)", "\n".join(locks), re.MULTILINE)
    components = document["components"]
    assert [(item["name"], item["version"]) for item in components] == pins
    assert len({item["bom-ref"] for item in components}) == len(pins)
    hashes = [digest["content"] for item in components for digest in item["hashes"]]
    assert hashes == re.findall(r"sha256:(\w+)", "\n".join(locks))


def test_markers_and_local_versions_are_kept() -> None:
    lock = f"torch==2.0+cpu ; sys_platform != 'darwin' \\\n    --hash=sha256:{'0' * 64}\n"
    (component,) = sbom.make_sbom(lock)["components"]
    assert component["purl"] == "pkg:pypi/torch@2.0%2Bcpu"
    assert component["properties"] == [
        {"name": "eaglegate:marker", "value": "sys_platform != 'darwin'"}
    ]
