"""Check the custom resources of every overlay against their own definitions.

python scripts/check_crds.py FOLDER

FOLDER contains CustomResourceDefinitions as published by their projects: KEDA, Gateway API,
LeaderWorkerSet, Prometheus operator. A field that is not in the definition is an error, because a
cluster would drop it. CEL rules are not evaluated.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

OVERLAYS = Path(__file__).parents[1] / "deploy" / "kubernetes" / "overlays"


def read_definitions(folder: Path) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield the schema of every served version, by apiVersion and kind."""
    for file in sorted(folder.glob("*.y*ml")):
        for made in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if made and made["kind"] == "CustomResourceDefinition":
                for version in made["spec"]["versions"]:
                    name = f"{made['spec']['group']}/{version['name']}"
                    kind = made["spec"]["names"]["kind"]
                    yield (name, kind), version["schema"]["openAPIV3Schema"]


def close_schema(schema: Any) -> Any:
    """Return the schema as JSON Schema, closed where Kubernetes prunes."""
    if isinstance(schema, list):
        return [close_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: close_schema(value)
        for key, value in schema.items()
        if key not in ("format", "default")
    }
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {key: close_schema(item) for key, item in schema["properties"].items()}
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
        if schema.get("type") == "object" and not open_ended:
            made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if schema.get("nullable") and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def render_overlay(overlay: Path) -> Iterator[dict[str, Any]]:
    text = subprocess.run(["kubectl", "kustomize", overlay], check=True, capture_output=True).stdout
    yield from (item for item in yaml.safe_load_all(text) if item)


def main(folder: Path, overlays: Iterable[Path]) -> int:
    """Return the exit status, which is 1 if something is wrong or nothing could be checked."""
    schemas = {key: close_schema(schema) for key, schema in read_definitions(folder)}
    checked, wrong = 0, 0
    for overlay in overlays:
        for item in render_overlay(overlay):
            if (schema := schemas.get((item["apiVersion"], item["kind"]))) is None:
                continue
            checked += 1
            for error in jsonschema.Draft7Validator(schema).iter_errors(item):
                wrong += 1
                print(f"{overlay.name}: {item['kind']}: {error.json_path}: {error.message[:300]}")
    kinds = ", ".join(sorted({kind for _, kind in schemas}))
    print(f"{checked} objects checked against {kinds}: {wrong} wrong")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sorted(OVERLAYS.iterdir())))
