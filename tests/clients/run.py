"""Install the clients, run their tests, write docs/clients.md.

    python -m tests.clients.run [--newest] [pytest arguments]

Two tests run at a time, each process with a gateway of its own. The page is written by whole runs.
With ``--newest`` the newest versions run; what fails is printed, and the status is 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

AT_ONCE = ("-n", "2", "--dist", "worksteal", "--durations", "10")


def main(argv: Sequence[str]) -> int:
    newest = "--newest" in argv
    environment = os.environ | ({"CLIENT_TESTS_VERSIONS": "newest"} if newest else {})
    python = (sys.executable, "-m")
    installed = subprocess.run((*python, "tests.clients.install"), env=environment, check=False)
    if installed.returncode and not newest:
        return installed.returncode
    more = [argument for argument in argv if argument != "--newest"]
    page = [] if newest or more else ["--clients-page"]
    command = (*python, "pytest", "-q", "tests/clients", *AT_ONCE, *page, *more)
    ran = subprocess.run(command, env=environment, check=False)
    return 0 if newest else ran.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
