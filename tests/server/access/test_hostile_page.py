"""A real browser opens a page of another origin, which tries to use the gateway. Needs Chromium."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from eaglegate.server.access.cross_origin import CrossOriginPolicy
from eaglegate.server.apis.shared.gateway import Controls
from tests.observability.test_browser import CHROMIUM, browser
from tests.server.access.test_door import pages
from tests.server.conftest import make_app, on_a_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (.ci/packages)"),
]
CHAT = '{"model": "demo", "messages": [{"role": "user", "content": "hi"}]}'
SIMPLE = """(async () => {
  const send = (url, options) => fetch(url, {method: "POST", mode: "no-cors", ...options})
    .then(() => 1, () => 0);
  await send(API + "/v1/chat/completions", {body: CHAT});
  await send(API + "/v1/chat/completions", {body: new Blob([CHAT])});
  await send(API + "/v1/messages", {body: new URLSearchParams({a: CHAT})});
  await send(API + "/v1/responses", {body: CHAT, referrerPolicy: "no-referrer"});
  await send(ADMIN + "/admin/reload", {});
  navigator.sendBeacon(API + "/v1/completions", CHAT);
  const form = document.createElement("form");
  const target = document.createElement("iframe");
  target.name = "target";
  Object.assign(form, {method: "POST", action: ADMIN + "/admin/reload", target: "target"});
  document.body.append(target, form);
  await new Promise(done => { target.onload = done; form.submit(); });
})()"""
PREFLIGHTED = """Promise.all([
  [API + "/v1/chat/completions", "POST"], [ADMIN + "/admin/speculation", "PUT"],
  [API + "/v1/responses/resp_1", "DELETE"],
].map(([url, method]) => fetch(url, {
  method, headers: {"content-type": "application/json"}, body: method == "DELETE" ? null : CHAT,
}).then(answer => answer.status, () => "unreadable")))"""
READ = """Promise.all([API + "/v1/models", API + "/metrics", ADMIN + "/admin/status"].map(
  url => fetch(url).then(answer => answer.text(), () => "unreadable")))"""
REBOUND = """Promise.all([
  ["/v1/models", "GET"], ["/metrics", "GET"], ["/", "GET"],
  ["/v1/chat/completions", "POST"], ["/v1/responses/resp_1", "DELETE"],
].map(([path, method]) => fetch(path, {
  method, body: method == "POST" ? CHAT : undefined, headers: {"content-type": "application/json"},
}).then(answer => answer.status)))"""


@dataclass
class Site:
    """The gateway's two ports, a hostile page's server, and what reached the gateway."""

    lab: object
    api: str
    admin: str
    page: str
    seen: list = field(default_factory=list)
    reloads: int = 0

    def script(self, script: str) -> str:
        given = {"API": self.api, "ADMIN": self.admin, "CHAT": CHAT}
        lines = "".join(f"var {name} = {value!r};" for name, value in given.items())
        return lines + script

    def took(self, method: str) -> set:
        return {(path, status) for verb, path, status in self.seen if verb == method}


@pytest.fixture
def site(lab):
    made = Site(lab, "", "", "")
    lab.says("x")

    async def reload():
        made.reloads += 1
        return {}

    lab.gateway.controls = Controls(reload, reload)

    def app():
        return recorded(make_app(lab, pages()), made.seen)

    async def page(_):
        return HTMLResponse("<!doctype html><title>x</title><body>hostile</body>")

    with ExitStack() as running:
        made.app = lambda: running.enter_context(on_a_port(app()))
        made.api, made.admin = made.app(), made.app()
        lab.gateway.admin_port = int(made.admin.rpartition(":")[2])
        elsewhere = running.enter_context(on_a_port(Starlette(routes=[Route("/", page)])))
        made.page = elsewhere.replace("127.0.0.1", "localhost")
        yield made


def recorded(app, seen):
    async def wrapped(scope, receive, send):
        async def noted(message):
            if message["type"] == "http.response.start":
                seen.append((scope["method"], scope["path"], message["status"]))
            await send(message)

        await app(scope, receive, noted)

    return wrapped


async def opened(page, url):
    await page.call("Page.enable")
    await page.call("Runtime.enable")
    await page.call("Page.navigate", url=url)
    ready = "document.body && document.readyState == 'complete' && location.host"
    while not await page.value(ready):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_a_page_of_another_origin_spends_changes_and_reads_nothing(site, tmp_path):
    async with asyncio.timeout(120), browser(tmp_path / "p") as page:
        for origin in (site.page, site.page.replace("localhost", "127.0.0.1")):
            await opened(page, origin)
            await page.value(site.script(SIMPLE))
            while ("/v1/completions", 403) not in site.took("POST"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert site.took("POST") == {
                ("/v1/chat/completions", 403),
                ("/v1/messages", 403),
                ("/v1/responses", 403),
                ("/v1/completions", 403),
                ("/admin/reload", 403),
            }
            assert await answers(page, site.script(PREFLIGHTED)) == ["unreadable"] * 3
            assert await answers(page, site.script(READ)) == ["unreadable"] * 3
            assert not site.took("PUT")
            assert not site.took("DELETE")
            assert not site.lab.engine.requests
            assert not site.reloads
            site.seen.clear()


async def test_a_page_whose_name_is_rebound_to_the_gateway_reaches_nothing(site, tmp_path):
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    site.lab.gateway.admin_port = None
    async with asyncio.timeout(120), browser(tmp_path / "p", rules) as page:
        await opened(page, site.api.replace("127.0.0.1", "evil.example") + "/health")
        assert await page.value("location.host") == site.api[7:].replace(
            "127.0.0.1", "evil.example"
        )
        assert await answers(page, site.script(REBOUND)) == [403] * 5
        assert not site.lab.engine.requests


async def test_a_page_of_an_allowed_origin_uses_the_api_and_nothing_else(site, tmp_path):
    site.lab.gateway.cross_origin = CrossOriginPolicy(origins=(site.page,))
    site.api = site.app()
    async with asyncio.timeout(120), browser(tmp_path / "p") as page:
        await opened(page, site.page)
        assert await answers(page, site.script(PREFLIGHTED)) == [200, "unreadable", 404]
        assert not site.took("PUT")
        assert len(site.lab.engine.requests) == 1


async def answers(page, script):
    said = await page.call(
        "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
    )
    return said["result"]["value"]
