"""A web page of another origin changes, spends and reads nothing where no key is asked for."""

from __future__ import annotations

import socket

import orjson
import pytest

from eaglegate.server.access.cross_origin import CrossOriginPolicy, parse_host, parse_names
from eaglegate.server.errors import ConfigError
from tests.server.access.test_door import pages, routes
from tests.server.conftest import call, make_app, make_scope

EVIL = "https://evil.example"
OPEN = {"/health", "/ready", "/ping"}
CHAT = orjson.dumps({"model": "demo", "messages": [{"role": "user", "content": "hi"}]})
FORMS = ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x")


async def post(lab, path="/v1/chat/completions", body=CHAT, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(lab.app, "POST", path, body, headers=named)


@pytest.fixture
def open_lab(lab):
    lab.app = make_app(lab, pages())
    lab.says("x")
    return lab


async def test_no_page_of_another_origin_changes_or_spends_anything(open_lab):
    checked = 0
    for method, path in routes(open_lab.app):
        if method in ("GET", "HEAD") or path in OPEN:
            continue
        for origin in (EVIL, "null", "http://localhost:3000", "http://localhost.evil.example"):
            checked += 1
            answer = await call(open_lab.app, method, path, b"{}", headers={"origin": origin})
            assert answer.status == 403, (method, path)
            if not path.startswith("/v1/messages"):
                assert answer.json["error"]["code"] == "origin_not_allowed"
    assert checked > 40
    assert not open_lab.engine.requests


@pytest.mark.parametrize("encoding", ["gzip", "br, gzip", "zstd"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
async def test_an_encoded_body_is_refused_as_such(open_lab, encoding, path):
    answer = await post(open_lab, path, b"\x1f\x8b", content_encoding=encoding)
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
    assert encoding in answer.json["error"]["message"]
    assert (await post(open_lab, content_encoding="identity")).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_sec_fetch_site_counts_without_an_origin(open_lab, site):
    assert (await post(open_lab, sec_fetch_site=site)).status == 403
    assert not open_lab.engine.requests


@pytest.mark.thorough
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost"},
        {"origin": "http://localhost", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"origin": "https://proxied.example", "sec_fetch_site": "same-origin"},
    ],
)
async def test_the_gateway_s_own_pages_and_programs_are_served(open_lab, headers):
    assert (await post(open_lab, **headers)).status == 200


@pytest.mark.parametrize("origin", ["app://obsidian.md", "vscode-webview://1a2b", "null"])
async def test_a_refusal_names_what_would_allow_it(open_lab, origin):
    refused = await post(open_lab, origin=origin, sec_fetch_site="cross-site")
    message = refused.json["error"]["message"]
    assert refused.status == 403
    assert "EAGLEGATE_ALLOWED_ORIGINS" in message
    assert (f"--allowed-origins {origin} " in message) == (origin != "null")
    refused = await post(open_lab, host="model")
    assert "--allowed-hosts model " in refused.json["error"]["message"]


async def test_a_scheme_of_applications_is_allowed_as_a_whole(open_lab):
    allow(open_lab, origins=("vscode-webview://*", "https://*"))
    for origin, status in (
        ("vscode-webview://1a2b", 200),
        ("vscode-webviewer://1a2b", 403),
        ("chrome-extension://1a2b", 403),
        (EVIL, 403),
    ):
        open_lab.says("x")
        answer = await post(open_lab, origin=origin, sec_fetch_site="cross-site")
        assert answer.status == status, origin
        assert ("access-control-allow-origin" in answer.headers) == (status == 200)


@pytest.mark.thorough
async def test_an_allowed_origin_is_served_and_may_read_the_answer(open_lab):
    allow(open_lab, origins=("https://app.example",))
    answer = await post(open_lab, origin="https://app.example", sec_fetch_site="cross-site")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = await post(open_lab, origin=EVIL)
    assert refused.status == 403
    assert "access-control-allow-origin" not in refused.headers


async def test_an_allowed_origin_reads_errors_too(open_lab):
    allow(open_lab, origins=("https://app.example",))
    open_lab.admit("user")
    answer = await post(open_lab, origin="https://app.example")
    assert answer.status == 401
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_a_preflight_needs_no_key(open_lab):
    allow(open_lab, origins=("https://app.example",))
    open_lab.admit("user")
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    for origin, status in (("https://app.example", 200), (EVIL, 400)):
        headers = asked | {"origin": origin}
        answer = await call(open_lab.app, "OPTIONS", "/v1/chat/completions", headers=headers)
        assert answer.status == status
        assert answer.headers.get("access-control-allow-origin") == (
            origin if status == 200 else None
        )


async def test_no_origin_ever_reaches_operator_paths(open_lab):
    allow(open_lab, origins=("*",))
    assert (await post(open_lab, origin=EVIL)).status == 200
    for path in ("/metrics", "/debug/speculation", "/"):
        answer = await open_lab.get(path, headers={"origin": EVIL})
        assert "access-control-allow-origin" not in answer.headers
    open_lab.gateway.admin_port = 9000
    for origin in (EVIL, "http://localhost:8000"):
        answer = await at_admin(open_lab, "POST", "/admin/reload", {"origin": origin})
        assert answer.status == 403


async def at_admin(lab, method, path, headers):
    return await call(lab.app, method, path, headers=headers, server=("127.0.0.1", 9000))


async def test_with_keys_the_key_is_the_proof(open_lab):
    open_lab.admit("user")
    key = {"authorization": "Bearer user-key-0123456789"}
    answer = await post(open_lab, origin="chrome-extension://abc", host="gw.example", **key)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST:8000", "localhost"), ("localhost.", "localhost"),
        ("[::1]:8000", "::1"), ("10.0.0.7:8000", "10.0.0.7"), ("a_b.example:1", "a_b.example"),
        ("", None), (":80", None), ("a b", None), ("[::1", None), ("a/b", None), ("a@b", None),
        ("a:b", None), ("localhost:123456", None), ("evil.example#@localhost", None),
    ],
)  # fmt: skip
def test_a_host_is_read_strictly(host, name):
    assert parse_host(host) == name


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example"])
async def test_a_rebound_name_reaches_nothing(open_lab, host):
    for method, path in routes(open_lab.app):
        if path in OPEN:
            continue
        answer = await call(open_lab.app, method, path, b"{}", headers={"host": host})
        assert answer.status == 403, (method, path)
        if method != "HEAD" and not path.startswith("/v1/messages"):
            assert answer.json["error"]["code"] == "host_not_allowed"
            assert "--allowed-hosts" in answer.json["error"]["message"]
    open_lab.gateway.admin_port = 9000
    answer = await at_admin(open_lab, "GET", "/admin/status", {"host": host})
    assert answer.status == 403


@pytest.mark.thorough
@pytest.mark.parametrize(
    "host", ["localhost:8000", "app.localhost", "127.0.0.1", "[::1]:80", "192.168.1.5:8000",
             "host.docker.internal:8000", "gpu1.corp.example", "x.team.example"],
)  # fmt: skip
async def test_names_of_this_machine_and_names_given_are_answered(open_lab, host):
    allow(open_lab, hosts=("gpu1.corp.example", "*.team.example"))
    assert (await open_lab.get("/v1/models", headers={"host": host})).status == 200


async def test_the_name_listened_on_and_the_machine_s_own_are_answered(open_lab):
    allow(open_lab, hosts=CrossOriginPolicy().for_machine("gw.corp.example").hosts)
    for name in ("gw.corp.example", socket.gethostname()):
        assert (await open_lab.get("/v1/models", headers={"host": name})).status == 200
    allow(open_lab, hosts=("*",))
    assert (await open_lab.get("/v1/models", headers={"host": "any.example"})).status == 200


async def test_a_request_names_its_host_once(open_lab):
    for hosts in ([], ["localhost", "localhost"], ["localhost", "evil.example"], ["a b"], [""]):
        answer = await raw(open_lab.app, [(b"host", host.encode()) for host in hosts])
        assert answer == 400, hosts
    assert await raw(open_lab.app, [], version="1.0") == 200


@pytest.mark.parametrize("origin", [b"null", b"", b"file://", b"https:", EVIL.encode()])
async def test_an_origin_is_not_the_gateway_s_own_because_neither_has_a_name(open_lab, origin):
    for version, host in (("1.0", []), ("1.1", [(b"host", b"localhost")])):
        headers = [*host, (b"origin", origin)]
        assert await raw(open_lab.app, headers, version, "POST") == 403, version


async def raw(app, headers, version="1.1", method="GET"):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = make_scope(method, "/v1/models") | {"headers": headers, "http_version": version}
    await app(scope, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize("kind", FORMS)
async def test_a_form_is_not_read_as_json(open_lab, kind):
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        answer = await typed(open_lab, path, kind)
        assert answer.status == 415
        assert answer.json["error"]["code"] == "unsupported_media_type"
        assert "content-type: application/json" in answer.json["error"]["message"]
    open_lab.gateway.admin_port = 9000
    headers = {"content-type": kind, "content-length": "2"}
    there = await call(
        open_lab.app, "POST", "/admin/reload", b"a=", headers=headers, server=("127.0.0.1", 9000)
    )
    assert there.status == 415


async def typed(lab, path, kind, **headers):
    length = {"content-length": str(len(CHAT))}
    return await call(
        lab.app, "POST", path, CHAT, headers={"content-type": kind} | length | headers
    )


async def test_a_program_may_leave_the_content_type_out_and_a_browser_may_not(open_lab):
    assert (await typed(open_lab, "/v1/chat/completions", "")).status == 200
    page = {"origin": "http://localhost"}
    assert (await typed(open_lab, "/v1/chat/completions", "", **page)).status == 415


@pytest.mark.parametrize(
    "given",
    [("https://a.example", "b"), ('["https://a.example", "b"]',), ('["https://a.example"', '"b"]')],
)
def test_names_are_given_one_by_one_or_as_vllm_takes_them(given):
    assert parse_names(given) == ("https://a.example", "b")


def allow(lab, hosts=(), origins=()):
    """The app with these names allowed."""
    lab.gateway.cross_origin = CrossOriginPolicy(hosts=tuple(hosts), origins=tuple(origins))
    lab.app = make_app(lab, pages())


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/"])
def test_an_allowed_origin_has_a_scheme_and_no_path(origin):
    with pytest.raises(ConfigError, match=f"such as https://app.example, or .; given {origin}"):
        CrossOriginPolicy(origins=(origin,)).for_machine("127.0.0.1")
    for valid in ("*", '["https://app.example:8443"]', "vscode-webview://*", "null"):
        CrossOriginPolicy(origins=(valid,)).for_machine("127.0.0.1")
