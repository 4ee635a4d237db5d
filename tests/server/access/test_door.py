"""Every route without, with a wrong, with an expired and with an insufficient key."""

from __future__ import annotations

import asyncio
import base64
import time

import pytest
from prometheus_client import CollectorRegistry

from eaglegate.engine.scripted import Pause
from eaglegate.observability import pages as operator_pages
from eaglegate.observability.facts import RequestRefused
from eaglegate.observability.labels import TelemetrySettings
from eaglegate.observability.metrics import GROUPS
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.keys import load_keys
from eaglegate.server.access.quota import KeyQuota
from tests.server.conftest import call, make_app, make_key, make_scope, secret_of

USER, ADMIN, OLD = map(secret_of, ("user", "boss", "old"))
REFUSED = ((None, "missing_api_key"), ("wrong", "invalid_api_key"), (OLD, "expired_api_key"))
FILES = {
    "/playground",
    "/page/ask.js",
    "/page/day.js",
    "/page/dom.js",
    "/page/operate.js",
    "/page/page.css",
    "/page/pictures.js",
    "/page/playground.js",
}
OPEN = {"/health", "/ready", "/ping"} | FILES
OPERATOR = {"/", "/metrics", "/debug/speculation", "/debug/history"}


def pages():
    return operator_pages.make_routes(
        Telemetry(GROUPS, TelemetrySettings(models=()), CollectorRegistry())
    )


@pytest.fixture
def guarded(lab):
    lab.app = make_app(lab, pages())
    expired = make_key("old", expires=time.time() - 1, admin=True)
    lab.admit("user", make_key("boss", admin=True), expired)
    return lab


def routes(app):
    """Every path with each of its methods, as the application knows them."""
    return [
        (method, getattr(route, "path", "").replace("{name:path}", "demo"))
        for route in app.routes
        for method in sorted(getattr(route, "methods", None) or {"GET"})
    ]


async def status(lab, method, path, key=None, scheme="authorization", **options):
    headers = {}
    if key is not None:
        headers[scheme] = f"Bearer {key}" if scheme == "authorization" else key
    return await call(lab.app, method, path, b"{}", headers=headers, **options)


async def test_every_route_is_closed_unless_listed_as_open(guarded):
    checked = 0
    for method, path in routes(guarded.app):
        if path in OPEN:
            assert (await status(guarded, method, path)).status == 200
            continue
        checked += 1
        for key, code in REFUSED:
            answer = await status(guarded, method, path, key)
            assert answer.status == 401, (method, path, key)
            assert "www-authenticate" in answer.headers
            if method != "HEAD" and not path.startswith("/v1/messages"):
                assert answer.json["error"]["code"] == code
            assert key is None or key not in answer.body.decode()
        sufficient = await status(guarded, method, path, ADMIN)
        assert sufficient.status not in (401, 403), (method, path)
        insufficient = await status(guarded, method, path, USER)
        operator = path in OPERATOR or path.startswith(("/admin", "/debug"))
        assert (insufficient.status == 403) == operator, (method, path)
    assert checked > 20
    assert {path for _, path in routes(guarded.app)} > OPEN | OPERATOR
    assert not guarded.engine.requests


def basic(password):
    return {"authorization": "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()}


async def test_a_browser_gives_an_admin_s_key_as_a_password(guarded):
    for path in sorted(OPERATOR):
        asked = await guarded.get(path)
        assert asked.status == 401
        assert asked.headers["www-authenticate"].startswith('Basic realm="eaglegate')
        assert (await guarded.get(path, headers=basic(ADMIN))).status == 200
        for wrong in ("", "wrong", USER, OLD):
            again = await guarded.get(path, headers=basic(wrong))
            assert again.status == 401, "a browser asks again after 401 only"
            assert again.headers["www-authenticate"].startswith("Basic")
        for broken in ("Basic", "Basic !", "Basic " + "é" * 3, "basic //8="):
            assert (await guarded.get(path, headers={"authorization": broken})).status == 401


async def test_a_refusal_names_the_key_that_was_valid(guarded):
    telemetry = Telemetry(GROUPS, TelemetrySettings(models=()), CollectorRegistry())
    guarded.gateway.observer = telemetry
    refusals = []
    telemetry.facts.subscribe(RequestRefused, refusals.append)
    for method, path, key in (
        ("GET", "/admin/status", USER),  # by authentication
        ("GET", "/nowhere", USER),  # by routing
        ("POST", "/v1/chat/completions", USER),  # by validation
        ("GET", "/v1/models", "wrong"),
        ("GET", "/v1/models", OLD),
    ):
        assert (await status(guarded, method, path, key)).status >= 400
    assert [refusal.key for refusal in refusals] == ["user", "user", "user", None, None]


async def test_a_password_opens_nothing_that_another_site_could_use(guarded):
    for method, path in routes(guarded.app):
        if path not in OPEN | OPERATOR and not path.startswith("/debug"):
            answer = await call(guarded.app, method, path, b"{}", headers=basic(ADMIN))
            assert answer.status == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_paths_that_do_not_exist_need_a_key_too(guarded):
    assert (await status(guarded, "GET", "/v1/nothing")).status == 401
    assert (await status(guarded, "GET", "/v1/nothing", USER)).status == 404
    assert (await status(guarded, "GET", "/adminx", USER)).status == 404
    assert (await status(guarded, "OPTIONS", "/v1/models")).status == 401


@pytest.mark.thorough
async def test_both_schemes_are_known_and_must_agree(guarded):
    assert (await status(guarded, "GET", "/v1/models", USER, "x-api-key")).status == 200
    assert (await status(guarded, "GET", "/v1/models", USER)).status == 200
    both = {"authorization": f"Bearer {USER}", "x-api-key": ADMIN}
    answer = await guarded.get("/v1/models", headers=both)
    assert answer.status == 401
    assert USER not in answer.body.decode()


async def test_errors_have_the_shape_of_the_api_asked(guarded):
    answer = await status(guarded, "POST", "/v1/messages")
    assert answer.json == {
        "type": "error",
        "error": {"type": "authentication_error", "message": answer.json["error"]["message"]},
    }


async def test_a_key_s_limits_hold(guarded):
    guarded.says("x")
    quota = KeyQuota("user", requests=2)
    guarded.admit(make_key("user", priority=Priority.HIGH, quota=quota))
    answers = [await guarded.chat(key="user") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].json["error"]["code"] == "key_requests_exceeded"
    assert int(answers[2].headers["retry-after"]) == 30


async def test_without_keys_admin_needs_a_port_of_its_own(lab):
    """A proxy on this machine that adds no header makes anybody look like a local client."""
    assert (await lab.get("/v1/models")).status == 200
    path = "/admin/speculation"
    answer = await status(lab, "GET", path)
    assert answer.status == 403
    assert "--admin-port" in answer.json["error"]["message"]
    lab.gateway.admin_port = 9000
    assert (await status(lab, "GET", path)).status == 404
    assert (await status(lab, "GET", path, server=("127.0.0.1", 9000))).status == 200


async def test_with_an_admin_port_operator_paths_are_there_and_nowhere_else(guarded):
    guarded.gateway.admin_port = 9000
    assert (await status(guarded, "GET", "/metrics", ADMIN)).status == 404
    assert (await status(guarded, "GET", "/metrics", server=("127.0.0.1", 9000))).status == 200
    there = {"server": ("127.0.0.1", 9000)}
    assert (await status(guarded, "GET", "/v1/models", USER, **there)).status == 404
    assert (await status(guarded, "GET", "/health", **there)).status == 200


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "1e9", "inf", ""])
async def test_a_deadline_must_be_one(lab, given):
    answer = await lab.get("/v1/models", headers={"x-request-timeout": given})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "x-request-timeout"


async def test_while_draining_new_work_is_sent_away_unread(lab):
    lab.gateway.stop()
    answer = await lab.chat()
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert (await lab.get("/ready")).status == 503
    assert (await lab.get("/health")).status == 200


async def test_a_body_that_does_not_come_is_given_up(lab):
    lab.configure(body_timeout_s=0.01)
    sent = []

    async def send(message):
        sent.append(message)

    scope = make_scope("POST", "/v1/chat/completions")
    await asyncio.wait_for(lab.app(scope, asyncio.Event().wait, send), 5)
    assert sent[0]["status"] == 408


async def test_a_revoked_key_s_responses_go_to_nobody(lab):
    """Keys of the command line: A is revoked, the gateway starts again with B alone."""
    lab.says("private")
    first, second = map(secret_of, ("first", "second"))
    lab.gateway.keys = load_keys(None, [first, second])
    made = await lab.respond(input="my secret", key="first")
    talk = await lab.post("/v1/conversations", {}, key="first")
    lab.gateway.keys = load_keys(None, [second])
    for path in (f"/v1/responses/{made.json['id']}", f"/v1/conversations/{talk.json['id']}"):
        for method in ("GET", "DELETE"):
            assert (await lab.call(method, path, key="second")).status == 404, (method, path)
    lab.gateway.keys = load_keys(None, [second, first])
    assert (await lab.get(f"/v1/responses/{made.json['id']}", key="first")).status == 200


@pytest.mark.parametrize("wanted", [0.01, 5.0, 3600.0])
async def test_a_client_s_timeout_is_at_most_the_gateway_s(lab, wanted):
    lab.configure(request_timeout_s=0.05)
    lab.engine.script = [Pause(10)]
    answer = await lab.chat(timeout_s=wanted)
    assert answer.status == 504
    assert f"within {min(wanted, 0.05):g} s" in answer.json["error"]["message"]
