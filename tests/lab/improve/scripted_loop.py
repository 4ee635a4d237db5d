"""The loop with scripted commands in place of tuning and comparing, as a process to be killed.

python -m tests.lab.improve.scripted_loop CONFIG URL
"""

from __future__ import annotations

import sys
from pathlib import Path

from eaglegate.lab.improve.config import ImproveConfig, read_config
from eaglegate.lab.improve.ledger import Ledger
from eaglegate.lab.improve.loop import ImproveLoop, Switch, lock_state
from eaglegate.lab.improve.stages import GatewayClient, Stages

SCRIPT = str(Path(__file__).with_name("scripted_commands.py"))


class ScriptedStages(Stages):
    """The real stages, with scripted commands for tuning and comparing."""

    def make_tune_command(self, folder: Path) -> list[str]:
        return self._command("tune", folder)

    def make_compare_command(self, folder: Path) -> list[str]:
        return self._command("compare", folder)

    def _command(self, name: str, folder: Path) -> list[str]:
        state = str(self.config.state)
        return [sys.executable, SCRIPT, name, state, str(folder)]


def make_scripted_stages(config: ImproveConfig, url: str, lock: int | None = None) -> Stages:
    ledger = Ledger(config.state / "ledger.sqlite3")
    return ScriptedStages(config, ledger, GatewayClient(url), Switch(config.state).check, lock)


def make_scripted_loop(config: ImproveConfig, url: str, lock: int | None = None) -> ImproveLoop:
    return ImproveLoop(config, make_scripted_stages(config, url, lock))


if __name__ == "__main__":
    found = read_config(Path(sys.argv[1]))
    with lock_state(found.state) as held:
        make_scripted_loop(found, sys.argv[2], held).run(once=True)
