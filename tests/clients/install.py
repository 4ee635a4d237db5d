"""Install the clients into ``.clients``, each by itself, once per version.

python -m tests.clients.install [NAME ...]
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.clients.pins import BY_NAME, CLIENTS, MACHINE, NEWEST, NODE, TORCH, UV, Client

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("CLIENT_TESTS_CACHE", ROOT / ".clients"))
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
LIMIT_S = 600
AT_ONCE = 3


class InstallError(Exception):
    """A client that could not be installed; says what the installer said."""


def folder_of(client: Client) -> Path:
    """The folder that a client is, or will be, installed in; its name changes with the wanted
    packages."""
    digest = hashlib.sha256(" ".join((NODE, *client.wanted)).encode()).hexdigest()[:8]
    return CACHE / f"{client.name}-{'newest' if NEWEST else digest}"


def install(client: Client) -> Path:
    """Install a client if it is not there; return its folder. Raises InstallError."""
    folder = folder_of(client)
    if client.kind == "here" or (folder / ".installed").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (_npm if client.kind == "npm" else _python)(client, folder)
    (folder / ".installed").touch()
    return folder


def node_bin() -> Path:
    """The folder of Node's binary, installed when it is not there."""
    package = f"node-{sys.platform}-{MACHINE}"
    folder = CACHE / f"node-{NODE}"
    found = folder / "node_modules" / package / "bin"
    if not (found / "node").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", *NPM, "--prefix", str(folder), f"{package}@{NODE}")
    return found


NPM = ("--no-audit", "--no-fund", "--no-progress", "--no-save", "--loglevel=error")
LEAN = ("--omit=optional", "--ignore-scripts")


def _npm(client: Client, folder: Path) -> None:
    path = f"{node_bin()}{os.pathsep}{os.environ['PATH']}"
    lean = LEAN if client.lean else ()
    _run("npm", "install", *NPM, *lean, "--prefix", str(folder), *client.wanted, PATH=path)


def _python(client: Client, folder: Path) -> None:
    uv = _uv()
    python = str(folder / "bin" / "python")
    _run(uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder))
    wanted = [package for package in client.wanted if not package.startswith("torch")]
    if len(wanted) < len(client.wanted):
        _torch(uv, python)
        wanted.append(TORCH)
    lean = ("--no-deps",) if client.lean else ()
    _run(uv, "pip", "install", "-q", "--python", python, *lean, *wanted)


def _torch(uv: str, python: str) -> None:
    """The CPU wheel: from where pip is told to look for it, else from PyTorch's own index."""
    command = (uv, "pip", "install", "-q", "--python", python, "--no-deps", TORCH)
    try:
        _run(*command)
    except InstallError:
        _run(*command, "--index-url", TORCH_INDEX)


def _uv() -> str:
    """uv, by far the fastest installer of whole environments; from the package index if need be."""
    found = shutil.which("uv")
    if found:
        return found
    folder = CACHE / f"uv-{UV}"
    if not (folder / "bin" / "uv").exists():
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(folder / "bin" / "pip"), "install", "-q", f"uv=={UV}")
    return str(folder / "bin" / "uv")


def _run(*command: str, **environment: str) -> None:
    links = os.environ.get("PIP_FIND_LINKS")
    if links:
        environment.setdefault("UV_FIND_LINKS", links)
    ran = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if ran.returncode:
        said = (ran.stdout + ran.stderr)[-2000:]
        raise InstallError(f"{' '.join(command)} ended with {ran.returncode}:\n{said}")


def main(names: Sequence[str]) -> int:
    chosen = [BY_NAME[name] for name in names] or [one for one in CLIENTS if one.kind != "here"]
    node_bin()
    _uv()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return 0 if all(pool.map(_report, chosen)) else 1


def _report(client: Client) -> bool:
    began = time.monotonic()
    if NEWEST:
        (folder_of(client) / ".installed").unlink(missing_ok=True)
    try:
        install(client)
    except (InstallError, subprocess.TimeoutExpired) as error:
        print(f"{client.title}: not installed: {error}", flush=True)
        return NEWEST
    took = time.monotonic() - began
    print(f"{client.title} {version_of(client)}: installed in {took:.0f} s", flush=True)
    return True


def version_of(client: Client) -> str:
    """The version of the installed client, read from its own package."""
    folder, package = folder_of(client), client.package
    if client.kind == "npm":
        about = folder / "node_modules" / package / "package.json"
        return str(json.loads(about.read_text())["version"])
    wanted = package.replace("-", "_").lower()
    found = (path.stem.split("-") for path in folder.glob("lib/python*/site-packages/*.dist-info"))
    return next(version for name, version in found if name.lower() == wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
