"""Write the SBOMs of a release: a CycloneDX file for each way to install eaglegate.

    python3 -m scripts.sbom FOLDER

A file lists the packages of the locks, each with the SHA-256 of every file that its lock accepts.
It has no date, so that the same locks give the same file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eaglegate import __version__

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
LOCKS = {"cpu": ("torch", "cpu"), "gateway": ("light",), "cuda": ("cuda",)}
"""Locks by the image that installs them. The packages of vLLM's CUDA image are vLLM's to list."""
PACKAGE = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))?"
    r"(?P<hashes>(?: \\\n +--hash=sha256:[0-9a-f]{64})+)$",
    re.MULTILINE,
)


def main(argv: Sequence[str]) -> int:
    for image, locks in LOCKS.items():
        text = "".join((REQUIREMENTS / f"{lock}.lock").read_text("utf-8") for lock in locks)
        path = Path(argv[0]) / f"eaglegate-{__version__}-{image}.cdx.json"
        path.write_text(json.dumps(make_sbom(text), indent=1) + "\n", encoding="utf-8")
    return 0


def make_sbom(lock: str) -> dict[str, Any]:
    """Return a CycloneDX document of the packages in a lock."""
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _make_component("application", "eaglegate", __version__)},
        "components": list(_list_components(lock)),
    }


def _list_components(lock: str) -> Iterator[dict[str, Any]]:
    for package in PACKAGE.finditer(lock):
        hashes = re.findall(r"sha256:(\w+)", package["hashes"])
        component = _make_component("library", package["name"], package["version"])
        component["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in hashes]
        if package["marker"]:
            component["properties"] = [{"name": "eaglegate:marker", "value": package["marker"]}]
        yield component


def _make_component(kind: str, name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{quote(version)}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
