"""A client's workplace: a temporary home and project, no way out but loopback, no telemetry."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.clients import mcp_server
from tests.clients.brain import Brain
from tests.clients.install import install, node_bin
from tests.clients.pins import BY_NAME
from tests.clients.traffic import Traffic

LIMIT_S = 300
NOWHERE = "http://127.0.0.1:9"
"""Discard: a proxy that is not there, so that whoever leaves loopback fails at once."""
QUIET = {
    "CI": "1",
    "NO_COLOR": "1",
    "DO_NOT_TRACK": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "http_proxy": NOWHERE,
    "https_proxy": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class Ran:
    """A client's run that has ended."""

    code: int
    out: str
    errors: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of its output that are JSON objects."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def __str__(self) -> str:
        return f"ended with {self.code}\n-- out\n{self.out[-6000:]}\n-- err\n{self.errors[-6000:]}"


@dataclass(frozen=True)
class Desk:
    """One test's client: its project folder, and the gateway as the client reaches it."""

    folder: Path
    url: str
    scratch: Path
    """A short path: sockets of some clients live there."""
    gateway: str
    """The gateway's own address, past the record."""
    brain: Brain
    traffic: Traffic

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def notes(self) -> Path:
        """The MCP server's notes: the text it was told to remember."""
        return self.folder / "notes.txt"

    @property
    def mcp_command(self) -> list[str]:
        return [sys.executable, str(Path(mcp_server.__file__).resolve()), str(self.notes)]

    def write(self, path: str, text: str) -> Path:
        """A file of the project; its folders are made."""
        file = self.project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def read(self, path: str) -> str:
        return (self.project / path).read_text()

    def run(
        self, client: str, *command: str, limit_s: float = LIMIT_S, env: Mapping[str, str] = {}
    ) -> Ran:
        """A command of an installed client, in the project."""
        environment = self.environment_of(client) | dict(env)
        return run(command, self.project, environment, limit_s)

    def environment_of(self, client: str) -> dict[str, str]:
        """All that an installed client is told; nothing of this process's own but the path."""
        folder = install(BY_NAME[client])
        binaries = folder / ("node_modules/.bin" if BY_NAME[client].kind == "npm" else "bin")
        path = os.pathsep.join((str(binaries), str(node_bin()), os.environ["PATH"]))
        home = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / ".config")}
        home |= {"XDG_DATA_HOME": str(self.home / ".data"), "TMPDIR": str(self.scratch)}
        return QUIET | home | {"PATH": path}

    @contextmanager
    def serve(
        self, client: str, *command: str, ready: str, env: Mapping[str, str]
    ) -> Iterator[None]:
        """A server of an installed client's, once ``ready`` answers, until the block ends."""
        log = self.folder / f"{client}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.environment_of(client) | dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + LIMIT_S
            while not answers(ready):
                failed = process.poll() is not None or time.monotonic() > deadline
                assert not failed, f"{client} did not start:\n{log.read_text()[-6000:]}"
                time.sleep(0.2)
            yield
        finally:
            end_group(process.pid)
            process.wait()

    def run_script(self, client: str, script: Path, *arguments: str, **more: str) -> Ran:
        """A script of ours with an installed client's packages."""
        if BY_NAME[client].kind != "npm":
            return self.run(client, "python", str(script), *arguments, env=more)
        beside = install(BY_NAME[client]) / script.name
        written = self.scratch / script.name
        shutil.copyfile(script, written)
        shutil.move(written, beside)
        return self.run(client, "node", str(beside), *arguments, env=more)


def answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.HTTPError:
        return False


def run(command: tuple[str, ...], folder: Path, environment: dict[str, str], limit_s: float) -> Ran:
    """Run a command to its end, or end it when its time is up; no process it started stays
    behind."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=limit_s)
        return Ran(process.returncode, out, errors)
    except subprocess.TimeoutExpired:
        end_group(process.pid)
        out, errors = process.communicate()
        return Ran(-1, out, f"{errors}\nkilled after {limit_s} s")
    finally:
        end_group(process.pid)


def end_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def end_processes(home: Path) -> None:
    """End daemons that have left their client's process group; their HOME shows whose they are."""
    mark = f"HOME={home}\0".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)
