"""The openai Node SDK against the demo model on a real port."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

VERSION = "7.55.0"
SCRIPT = Path(__file__).parent / "node_client.mjs"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    assert shutil.which("node"), "install nodejs and npm: they are in .ci/packages"
    assert shutil.which("npm"), "install npm: it is in .ci/packages"
    folder = tmp_path_factory.mktemp("node")
    quiet = ["--no-audit", "--no-fund", "--no-save", "--silent", "--prefix", str(folder)]
    subprocess.run(["npm", "install", *quiet, f"openai@{VERSION}"], check=True, timeout=120)
    shutil.copy(SCRIPT, folder)
    return folder


def test_the_node_sdk_chats_streams_calls_and_parses(demo_gateway, installed):
    command = ["node", SCRIPT.name, f"{demo_gateway.url}/v1"]
    ran = subprocess.run(
        command, cwd=installed, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["models"] == ["demo"]
    assert "47" in found["whole"]
    assert found["streamed"] == found["whole"]
    assert found["helper"] == found["whole"]
    assert found["call"] == {"name": "get_weather", "arguments": {"city": "Oslo"}}
    assert isinstance(found["structured"]["answer"], int)
    assert found["response"] == found["responseStreamed"]
    assert "47" in found["response"]
    assert found["error"] == {"status": 404, "code": "model_not_found", "param": "model"}
