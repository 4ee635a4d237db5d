"""Watches a gateway from a process of its own: how long /health takes, and the memory of all of it.

Ends when standard input does, and prints what it saw as JSON.
"""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PAUSE_S = 0.01


def main(url: str, pid: int) -> None:
    client = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    seconds: list[float] = []
    idle = peak = _memory(pid)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        began = time.perf_counter()
        client.request("GET", "/health")
        assert client.getresponse().read() is not None
        seconds.append(time.perf_counter() - began)
        if len(seconds) % 5 == 0:
            peak = max(peak, _memory(pid))
    seconds.sort()
    at = {f"p{share:g}": seconds[int(len(seconds) * share / 100)] for share in (50, 99, 99.9)}
    print(json.dumps({**at, "max": seconds[-1], "num": len(seconds), "grown": peak - idle}))


def _memory(pid: int) -> int:
    """Resident bytes of a process and of all it has started."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmRSS:"):
                total = int(line.split()[1]) * 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(map(_memory, map(int, (task / "children").read_text("ascii").split())))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended meanwhile
    return total


class Watch:
    """Watches inside a ``with``; ``seen`` afterwards."""

    def __init__(self, url: str, pid: int) -> None:
        self._command = (sys.executable, "-m", __name__, url, str(pid))
        self.seen: dict[str, Any] = {}

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        out, _ = self._process.communicate("")
        self.seen = json.loads(out)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
