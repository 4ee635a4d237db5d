"""The LoRA adapters of ``--lora-modules``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import orjson

from eaglegate.server.errors import ConfigError

ADAPTER_CONFIG = "adapter_config.json"


def read_adapters(
    modules: Sequence[str], is_enabled: bool, models: Collection[str]
) -> dict[str, str]:
    """Return the folders of adapters by name, in the given order. Raises ConfigError."""
    if modules and not is_enabled:
        raise ConfigError("--lora-modules needs --enable-lora")
    adapters: dict[str, str] = {}
    for item in modules:
        name, path = _read_adapter(item)
        if name in adapters or name in models:
            raise ConfigError(f"--lora-modules: there is more than one model named '{name}'")
        if not (Path(path).expanduser() / ADAPTER_CONFIG).is_file():
            raise ConfigError(f"--lora-modules {name}: {path} holds no {ADAPTER_CONFIG}")
        adapters[name] = str(Path(path).expanduser())
    return adapters


def _read_adapter(item: str) -> tuple[str, str]:
    """Parse ``name=path``, or a JSON object with both."""
    if item.startswith("{"):
        try:
            entry = orjson.loads(item)
            return str(entry["name"]), str(entry["path"])
        except (orjson.JSONDecodeError, KeyError) as error:
            raise ConfigError(
                f"--lora-modules takes name=path or a JSON object with name and path: {error}"
            ) from None
    name, equals, path = item.partition("=")
    if not (name and equals and path):
        raise ConfigError(f"--lora-modules takes name=path or a JSON object; given {item[:80]}")
    return name, path
