"""/admin/draft: swap, rollback, what is refused and how."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import ClassVar

import pytest

from eaglegate.engine.errors import EngineDead, EngineFailed
from eaglegate.engine.supervision.policy import AppliedDepth
from eaglegate.features.canary import draft_command as command
from eaglegate.features.canary.changes import CanaryChanges
from eaglegate.features.canary.promoted import PromotedRules
from eaglegate.features.canary.runner import CanaryRunner
from eaglegate.server.apis.shared.gateway import Controls
from tests.engine.speculation.test_drafts import DEMO, copy_draft, make_manager
from tests.features.canary.test_canary import SimulatedTraffic


@pytest.fixture
def swappable(lab):
    async def bound(depth):
        return AppliedDepth(depth)

    async def reload():
        return {}

    lab.drafts, lab.loader = make_manager()
    lab.traffic = SimulatedTraffic(lab.drafts)
    policy = lab.gateway.require().policy
    memory = PromotedRules(None, policy.rules)
    canaries = CanaryRunner(CanaryChanges(lab.traffic, policy, memory, drafts=lab.drafts))
    lab.gateway.controls = Controls(reload, bound, lab.drafts)
    lab.gateway.features["canary"] = SimpleNamespace(runner=canaries)
    policy.listeners.append(memory.forget)
    return lab


async def test_a_draft_is_swapped_and_rolled_back(swappable, tmp_path):
    before = (await swappable.get("/admin/draft")).json
    assert before["serving"]["method"] == "eagle3.1"
    path = str(copy_draft(tmp_path / "new", 1))
    after = (await swappable.call("POST", "/admin/draft", {"path": path})).json
    assert after["swap"]["before"] == before["serving"]["fingerprint"]
    assert after["serving"]["source"] == path
    assert (after["swap"]["pause_s"], after["trial"]) == (0.01, False)
    back = (await swappable.call("POST", "/admin/draft/rollback", {})).json
    assert back["serving"]["fingerprint"] == before["serving"]["fingerprint"]
    assert [swap["kind"] for swap in back["swaps"]] == ["swap", "rollback"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"path": str(DEMO / "eagle3")}, 400, "draft_refused"),
        ({"path": "/nowhere/at/all"}, 400, "draft_refused"),
        ({"path": ""}, 400, None),
        ({"folder": "x"}, 400, None),
        ({}, 400, None),
    ],
)
async def test_invalid_drafts_are_refused(swappable, body, status, code):
    answer = await swappable.call("POST", "/admin/draft", body)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert not swappable.loader.loaded


ODD_PATHS = (
    "x" * 4000, "/" + "y/" * 2000, "/tmp/a\0b", "~nobody-of-this-name/draft", "/etc/hostname",
    "/proc/self/mem", "\n", "a" * 256,
)  # fmt: skip


@pytest.mark.parametrize("url", ["/admin/draft", "/admin/canary"])
async def test_no_path_makes_a_server_error(swappable, url):
    """The file system refuses some names with errors of its own."""
    for path in ODD_PATHS:
        answer = await swappable.call("POST", url, {"path": path})
        assert (answer.status, answer.json["error"]["code"]) == (400, "draft_refused"), path
    assert not swappable.loader.loaded


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineFailed("The draft was not exchanged."), 500, "draft_swap_failed"),
        (EngineDead("The engine has died."), 503, "engine_dead"),
    ],
)
async def test_a_swap_that_fails_says_so(swappable, tmp_path, error, status, code):
    swappable.loader.error = error
    path = str(copy_draft(tmp_path / "new", 1))
    answer = await swappable.call("POST", "/admin/draft", {"path": path})
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert (await swappable.get("/admin/draft")).json["trial"] is False


async def test_without_a_draft_of_its_own_a_gateway_says_where_it_is(swappable):
    controls = swappable.gateway.controls
    swappable.gateway.controls = Controls(controls.reload, controls.bound_depth)
    answer = await swappable.get("/admin/draft")
    assert (answer.status, answer.json["error"]["code"]) == (409, "no_draft")


async def test_a_canary_is_started_shown_and_stopped(swappable, tmp_path):
    assert (await swappable.get("/admin/canary")).json == {"canary": None}
    body = {"path": str(copy_draft(tmp_path / "new", 1)), "slot_s": 60}
    started = (await swappable.call("POST", "/admin/canary", body)).json["canary"]
    assert (started["running"], started["verdict"]) == (True, None)
    assert swappable.drafts.in_trial
    again = await swappable.call("POST", "/admin/canary", body)
    assert (again.status, again.json["error"]["code"]) == (409, "canary_running")
    stopped = (await swappable.call("DELETE", "/admin/canary")).json["canary"]
    assert stopped["running"] is False
    assert not swappable.drafts.in_trial
    assert command._format_canary(stopped).startswith("stopped: ")


@pytest.mark.parametrize(
    "body", [{"path": str(DEMO / "eagle3")}, {"path": "x", "alpha": 2}, {"path": "x", "slot_s": 0}]
)
async def test_a_canary_that_cannot_be_run_is_refused(swappable, body):
    answer = await swappable.call("POST", "/admin/canary", body)
    assert answer.status == 400
    assert not swappable.drafts.in_trial


class Recorder(BaseHTTPRequestHandler):
    """Refuses, and keeps what came."""

    seen: ClassVar[list[tuple[str, str, object]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((self.path, self.headers.get("authorization", ""), body))
        self.send_response(400)
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": "It does not fit."}}).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_the_command_sends_what_it_is_given_and_prints_the_refusal(tmp_path, capsys):
    server = HTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.handle_request, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    status = command.main(["swap", str(tmp_path), "--trial", "--url", url, "--key", "k"])
    server.server_close()
    assert status == 1
    assert "It does not fit." in capsys.readouterr().err
    assert Recorder.seen == [("/admin/draft", "Bearer k", {"path": str(tmp_path), "trial": True})]
