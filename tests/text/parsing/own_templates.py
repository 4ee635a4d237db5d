"""The models' own chat templates, from packages of the registry."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tests.clients.install import install
from tests.clients.pins import python

PACKAGES = {
    "trl": python("trl", "TRL's chat templates", "trl==1.16.0", lean=True),
    "xinference": python(
        "xinference", "Xinference's chat templates", "xinference==4.1.0", lean=True
    ),
}


@cache
def _folder(name: str) -> Path:
    return next(install(PACKAGES[name]).glob(f"lib/python*/site-packages/{name}"))


def read_source(package: str, name: str) -> str:
    if package != "xinference":
        return (_folder(package) / f"chat_templates/{name}.jinja").read_text(encoding="utf-8")
    about = _folder(package) / f"model/llm/models/{name}.json"
    found = json.loads(about.read_text(encoding="utf-8"))
    return str((found[-1] if isinstance(found, list) else found)["chat_template"])
