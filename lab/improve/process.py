"""The improvement loop as a child process of the gateway: ``serve --improve FILE``."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from eaglegate.lab.improve.config import ImproveConfig, read_config

log = logging.getLogger(__name__)

NICE = 5
RESTART_S = 5.0
STOP_S = 10.0
WRONG_USAGE = 2
PR_SET_PDEATHSIG = 1


def become_background(nice: int) -> None:
    """Give a child process low priority, and end it with its parent. Runs in the child."""
    os.nice(nice)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class ImproveProcess:
    """Runner of ``eaglegate improve``, which restarts a loop that dies until it is cancelled."""

    file: Path
    config: ImproveConfig
    key: str | None = None
    """An admin's API key. It is passed in the environment, where no process list shows it."""

    async def run(self, url: str) -> None:
        while True:
            status = await self._run_once(url)
            if status in (0, WRONG_USAGE):
                log.error("the improvement loop ended with %s; not restarting it", status)
                return
            log.error("the improvement loop ended with %s; restarting it", status)
            await asyncio.sleep(RESTART_S)

    async def _run_once(self, url: str) -> int:
        """Run the loop once and return its exit status. Cancellation ends the process."""
        command = ("-m", "eaglegate.server", "improve", "--config", str(self.file))
        address = ("--url", self.config.serve or url)
        key = {} if self.key is None else {"EAGLEGATE_ADMIN_API_KEY": self.key}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            *address,
            env=os.environ | key,
            preexec_fn=lambda: become_background(NICE),
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), STOP_S)
                except TimeoutError:
                    process.kill()


def open_process(file: Path, key: str | None) -> ImproveProcess:
    """Return the loop that ``file`` configures. Raises ConfigInvalid."""
    return ImproveProcess(file, read_config(file), key)
