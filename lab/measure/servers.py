"""Servers that a measurement starts, and the description of a running server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from eaglegate.lab.measure.load import LoadClient, Target

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "engine" / "demo"
DEMO_DEPTH = 3
IDENTITY_LAYERS = 32
"""Identity layers of the cost-scaled demo. With the 8 real layers they make 40."""
START_LIMIT_S = 1800.0
STOP_LIMIT_S = 30.0
HEARTBEAT_S = 10.0
ADDRESS = re.compile(r"eaglegate serves (http://\S+?)/v1")
SPECULATION = "--speculative-config"
DEPTH_FIELD = "num_speculative_tokens"
"""Field of a request that limits its draft tokens per step."""
Say = Callable[[str], None]


class ServerError(RuntimeError):
    """Server that does not answer or did not start. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a comparison: a server, and fields that override every body."""

    name: str
    url: str = ""
    flags: tuple[str, ...] = ()
    """Flags of `eaglegate serve`, if the measurement starts the server."""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def server(self) -> tuple[str, tuple[str, ...]]:
        """Key of the server. Settings with the same key share one."""
        return self.url, self.flags


def read_setting(text: str, fields: Mapping[str, Any], base: Setting | None) -> Setting | None:
    """Read a URL, or a JSON object of fields for the server of ``base``; None for other texts."""
    if text.startswith("{") and base is not None:
        return replace(base, name=text, fields={**fields, **json.loads(text)})
    if text.startswith(("http://", "https://")):
        url = text.rstrip("/").removesuffix("/v1")
        return Setting(url, url, fields=fields)
    return None


def demo_flags(target: Path, draft: Path, **settings: Any) -> tuple[str, ...]:
    """Return the demo's flags, all explicit, so that the demo also runs without its draft.

    ``settings`` are additional keys of ``--speculative-config``.
    """
    speculation = {
        "method": "eagle3",
        "model": str(draft),
        "num_speculative_tokens": DEMO_DEPTH,
        **settings,
    }
    return (
        str(target),
        "--served-model-name=demo",
        "--reasoning-parser=qwen3",
        "--tool-call-parser=hermes",
        "--kv-cache-memory-bytes=1073741824",
        SPECULATION,
        json.dumps(speculation),
    )


def drop_speculation(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags without a draft. Raises ServerError if there is none."""
    selection: list[str] = []
    remainder = iter(flags)
    for flag in remainder:
        name = flag.partition("=")[0].replace("_", "-").partition(".")[0]
        if name in (SPECULATION, "-sc"):
            if "=" not in flag:
                next(remainder, None)
        else:
            selection.append(flag)
    if len(selection) == len(flags):
        raise ServerError(
            f"--baseline none removes {SPECULATION} from the flags after --, which lack it"
        )
    return tuple(selection)


def make_cost_scaled_demo(say: Say) -> Path:
    """Return the folder of the demo with 40 layers, made on first use. Raises ServerError."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "eaglegate" / f"demo-cost-scaled-{IDENTITY_LAYERS}"
    if not (folder / "eagle3_1" / "config.json").is_file():
        say(f"making the cost-scaled demo in {folder}")
        command = [sys.executable, "-m", "eaglegate.lab.training.cost_scaled", "--out", str(folder)]
        command += ["--identity-layers", str(IDENTITY_LAYERS)]
        process = subprocess.run(
            command, capture_output=True, text=True, env=_make_environment(), check=False
        )
        if process.returncode:
            raise ServerError(
                "the cost-scaled demo needs torch, safetensors and transformers (pip install "
                f"'.[train]' in eaglegate's checkout): {process.stderr.strip().splitlines()[-1:]}"
            )
    return folder


def _make_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT.parent), os.environ.get("PYTHONPATH"))))
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": path,
    }


@asynccontextmanager
async def serve(setting: Setting, log: Path, say: Say) -> AsyncGenerator[str, None]:
    """Start a server with the setting's flags and yield its URL. Raises ServerError."""
    command = [sys.executable, "-m", "eaglegate.server", "serve", "--port", "0", *setting.flags]
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_make_environment(),
            start_new_session=True,
        )
    try:
        say(f"starting {setting.name} (log: {log})")
        yield await _wait_for_address(process, setting, log, say)
    finally:
        await _stop(process)


async def _wait_for_address(
    process: asyncio.subprocess.Process, setting: Setting, log: Path, say: Say
) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while True:
                reading = asyncio.ensure_future(process.stdout.readline())
                while not (await asyncio.wait([reading], timeout=HEARTBEAT_S))[0]:
                    say(f"  ... starting {setting.name}")
                line = reading.result().decode(errors="replace")
                if match := ADDRESS.search(line):
                    return match[1]
                if not line:
                    break
    except TimeoutError:
        raise ServerError(f"{setting.name} did not start in {START_LIMIT_S:.0f} s") from None
    raise ServerError(f"{setting.name} did not start; the end of {log}:\n{_read_tail(log)}")


def _read_tail(log: Path, lines: int = 10) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def describe_target(target: Target) -> Target:
    """Return the target with its model's name and ``reports_steps``. Raises ServerError."""
    async with LoadClient.open(target) as client:
        try:
            reply = await client.get("/v1/models")
            reply.raise_for_status()
            cards = reply.json()["data"]
            card = next((card for card in cards if card["id"] == target.model), cards[0])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ServerError(
                f"{target.url}/v1/models does not answer as an OpenAI-compatible server: "
                f"{type(error).__name__} {error}. Give the URL without /v1; --header for a key"
            ) from None
    is_eaglegate = card.get("owned_by") == "eaglegate"
    return replace(target, model=target.model or card["id"], reports_steps=is_eaglegate)
