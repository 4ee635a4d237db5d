"""Check all locked packages against PyPI's advisories.

    python3 scripts/audit.py [--osv-url URL]

The exit status is 1 if a vulnerable version is pinned and requirements/audit-ignored.txt gives no
reason to ignore it. If the advisories cannot be reached, for example through a mirror that serves
only packages, nothing is checked: a notice says so, and the exit status is 3. ``--osv-url`` names
another service with OSV's protocol.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP_AUDIT = "pip-audit==2.10.1"
PROBE = "https://pypi.org/pypi/pip/25.0/json"
TIMEOUT_S = 15
NOT_AUDITED = 3
LOCKS = tuple(ROOT / "requirements" / f"{name}.lock" for name in ("torch", "cpu", "cuda", "dev"))
PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
IGNORED = ROOT / "requirements" / "audit-ignored.txt"


def main(argv: Sequence[str]) -> int:
    service = ["-s", "osv", "--osv-url", argv[1]] if argv[:1] == ["--osv-url"] else []
    why = "" if service else find_obstacle(PROBE)
    if why:
        print(
            f"\n*** NOT AUDITED: no advisories for the {len(LOCKS)} locks, because {why}. ***\n"
            "*** Run `make audit` where PyPI's JSON API can be reached. ***\n",
            flush=True,
        )
        return NOT_AUDITED
    with tempfile.TemporaryDirectory() as folder:
        return _audit(Path(folder), service)


def find_obstacle(url: str) -> str:
    """Return the reason why the advisories cannot be read, or "" if they can."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            found = b'"vulnerabilities"' in answer.read()
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}"
    except OSError as error:
        return f"{url} cannot be reached ({getattr(error, 'reason', error)})"
    return "" if found else f"{url} lists no vulnerabilities"


def read_ignored(text: str) -> list[str]:
    """Return the advisories in lines ``ID reason``. Raises ValueError for one without a reason."""
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and line[0] != "#"]
    for words in lines:
        if len(words) < 2:
            raise ValueError(f"{words[0]}: say why it does not matter here")
    return [words[0] for words in lines]


def list_pins(locks: Iterable[str]) -> list[str]:
    """Return every name and version, in files that contain each name once, as pip-audit requires.

    Hashes are left out, because pip-audit would need those of all files of a version. A local
    version label, as in 2.13.0+cpu, is also left out: advisories are about the public version.
    """
    versions: dict[str, list[str]] = {}
    for name, version in PIN.findall("\n".join(locks)):
        known = versions.setdefault(name, [])
        if (public := version.partition("+")[0]) not in known:
            known.append(public)
    rounds = range(max(map(len, versions.values())))
    return [
        "".join(f"{name}=={known[at]}\n" for name, known in versions.items() if at < len(known))
        for at in rounds
    ]


def _audit(folder: Path, service: list[str]) -> int:
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-qq", PIP_AUDIT], check=True)
    files = []
    for at, text in enumerate(list_pins(lock.read_text() for lock in LOCKS)):
        files.append(folder / f"pins-{at}.txt")
        files[-1].write_text(text)
    command = [python, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += [*service, *(word for file in files for word in ("-r", str(file)))]
    for advisory in read_ignored(IGNORED.read_text()):
        command += ["--ignore-vuln", advisory]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
