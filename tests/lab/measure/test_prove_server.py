"""``eaglegate prove --server`` against a server whose answers and counters a test chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from eaglegate.lab.prove import server
from eaglegate.server.__main__ import main

LINE = ("prove", "--server", "http://pod:8000", "--prompts", "3")


@contextmanager
def pod(
    monkeypatch: pytest.MonkeyPatch, own: float = 1.0, plain: str = "", info: str = "{} 1"
) -> Iterator[None]:
    """A server that verifies one draft for every answer with speculation, and counts it ``own``
    times itself; answers at depth 0 end with ``plain``."""
    num_verified = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal num_verified
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "demo"}]})
        if request.url.path == "/metrics":
            lines = [f"eaglegate_pod_info{info}"] if info else []
            for ours, theirs in server.COUNTERS.items():
                lines += [f'{ours}{{engine="0"}} {own * num_verified}', f"{theirs} {num_verified}"]
            return httpx.Response(200, text="\n".join(lines))
        is_plain = "vllm_xargs" in json.loads(request.content)
        num_verified += not is_plain
        message = {"content": f"47{plain if is_plain else ''}"}
        return httpx.Response(200, json={"choices": [{"message": message}]})

    transport, make = httpx.MockTransport(answer), httpx.AsyncClient
    monkeypatch.setattr(
        httpx, "AsyncClient", lambda **options: make(transport=transport, **options)
    )
    yield


def test_a_pod_is_proven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pod(monkeypatch):
        assert main(LINE) == 0
    printed = capsys.readouterr().out
    assert "pass  texts: 3 of 3 are equal" in printed
    assert "grew by 3, vllm:spec_decode_num_drafts_total by 3" in printed


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"own": 2.0}, "FAIL  accounts: eaglegate_pod_draft_tokens_total grew by 6, "),
        ({"plain": "!"}, "FAIL  texts: 0 of 3 are equal"),
        ({"info": ""}, "FAIL  pod: no eaglegate_pod_info on /metrics"),
    ],
)
def test_faults_are_named(
    fault: dict[str, float | str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pod(monkeypatch, **fault):  # type: ignore[arg-type]
        assert main(LINE) == 1
    assert message in capsys.readouterr().out
