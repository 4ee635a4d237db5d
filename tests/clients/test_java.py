"""Java's own HTTP client, which many frameworks for the JVM are built on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clients.brain import IDLE

SCRIPT = Path(__file__).parent / "scripts" / "Main.java"


@pytest.mark.client("java")
@pytest.mark.skipif(shutil.which("java") is None, reason="there is no JDK")
def test_default_client(desk):
    """posts bodies with its default settings, which offer HTTP/2, whole and streamed"""
    ran = desk.run("java", "java", str(SCRIPT), desk.gateway)
    assert ran.code == 0, ran
    first, second, streamed = ran.out.strip().splitlines()
    for answer in (first, second):
        assert answer.startswith("200 HTTP_1_1 "), answer
        assert IDLE in answer
    assert streamed.startswith("200 HTTP_1_1 data: ")
    assert streamed.rstrip().endswith("data: [DONE]")
