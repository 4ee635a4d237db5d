"""The playground's files, and the playground in a real browser on the scripted engine."""

from __future__ import annotations

import asyncio
import itertools

import orjson
import pytest

from eaglegate.engine.types import DecodeStep, DepthReason, Step, StepTrace
from eaglegate.observability.pages import make_page_routes
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.keys import KeyRing, hash_key
from eaglegate.text.events import FinishReason
from tests.observability.test_browser import CHROMIUM, DEVICES, browser, shoot
from tests.server.conftest import call, make_app, on_a_port
from tests.server.seeing_lab import SeeingLab

MOST_BYTES = 150_000
KEY = "secret-of-a-browser"
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (.ci/packages)")


async def test_the_page_is_small_and_loads_nothing_from_elsewhere(lab):
    app = make_app(lab, make_page_routes())
    index = await call(app, "GET", "/playground")
    names = {part.split(b'"')[0].decode() for part in index.body.split(b'="page/')[1:]}
    files = {route.path for route in make_page_routes() if route.path.startswith("/page/")}
    assert {f"/page/{name}" for name in names} <= files
    answers = [await call(app, "GET", path) for path in sorted(files)]
    assert len(index.body) + sum(len(answer.body) for answer in answers) < MOST_BYTES
    for answer in (index, *answers):
        assert answer.status == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        text = answer.body.replace(b"http://www.w3.org/2000/svg", b"")
        for forbidden in (b"http://", b"https://", b"innerHTML", b"style=", b"eval("):
            assert forbidden not in text


async def test_with_keys_the_playground_opens_and_the_operators_page_does_not(lab):
    lab.gateway.keys = KeyRing((ApiKey("user", hash_key(KEY)),))
    app = make_app(lab, make_page_routes())
    assert (await call(app, "GET", "/playground")).status == 200
    assert (await call(app, "GET", "/page/playground.js")).status == 200
    assert (await call(app, "GET", "/page/unknown.js")).status == 404
    assert (await call(app, "GET", "/")).status == 401
    assert (await call(app, "GET", "/v1/models")).status == 401


OPENED = "document.body && document.body.dataset.playground == '1'"
DONE = "document.getElementById('panels').dataset.done == '1'"


async def wait_for(page, condition: str, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await page.value(condition):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def open_playground(page, url: str, device: str = "desk", scheme: str = "light") -> None:
    width, height, mobile = DEVICES[device]
    for domain in ("Page", "Runtime", "Network"):
        await page.call(f"{domain}.enable")
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    await page.call("Emulation.setEmulatedMedia", features=features)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    await page.call("Emulation.setDeviceMetricsOverride", **size)
    await page.call("Page.navigate", url=url)


async def fill(page, **values: str) -> None:
    for name, value in values.items():
        text = orjson.dumps(value).decode()
        await page.value(
            f"(() => {{ const e = document.getElementById('{name}'); e.value = {text};"
            "e.dispatchEvent(new Event('change')); })()"
        )


def script(lab, text: str) -> list[int]:
    """``text`` in verify steps of three tokens, each with one rejected draft."""
    ids = lab.renderer.encode(text, False)
    wrong = lab.renderer.encode("<", False)[0]
    lab.engine.script = [Step(tuple(ids[:1]), traces=(StepTrace(1.0),))]
    for at in range(1, len(ids), 3):
        part = ids[at : at + 3]
        lab.engine.script.append(
            Step(
                tuple(part),
                decode=(DecodeStep(len(part), len(part) - 1, len(part), planned=DepthReason.COST),),
                finish=FinishReason.STOP if at + 3 >= len(ids) else None,
                traces=(StepTrace(1.0 + at, (*part[:-1], wrong), (90.4, 100.6, 0.0), 0.25),),
            )
        )
    return ids


@pytest.mark.slow
@in_a_browser
async def test_with_keys_a_browser_gets_in_with_the_key_that_its_user_enters(lab, tmp_path):
    lab.gateway.keys = KeyRing((ApiKey("user", hash_key(KEY)),))
    ids = script(lab, "one two three four five six")
    with on_a_port(make_app(lab, make_page_routes())) as url:
        async with asyncio.timeout(60), browser(tmp_path / "p") as page:
            await open_playground(page, url + "/playground")
            await wait_for(page, OPENED)
            said = "document.getElementById('said').innerText"
            assert "needs an API key" in await page.value(said)
            await fill(page, key=KEY)
            await wait_for(page, f"{said} == ''")
            await page.value("document.getElementById('run').click()")
            await wait_for(page, DONE)
            assert await page.value("document.querySelectorAll('.written span').length") == len(ids)
            assert await page.value("localStorage.length + document.cookie.length") == 0
            for name in ("curl", "python"):
                await page.value(f"document.getElementById('{name}').click()")
                copied = await page.value("document.getElementById('copied').value")
                assert "EAGLEGATE_API_KEY" in copied and KEY not in copied
            assert page.problems == []


HOSTILE = (
    "</span><img src=x onerror=document.title=1><script>document.title=2</script>"
    "\u202e\x1b[31m\x00\u2028 `${1}` & \"'"
)


@pytest.mark.slow
@in_a_browser
async def test_hostile_text_changes_nothing_but_text(lab, tmp_path):
    script(lab, HOSTILE + "x" * 150)
    with on_a_port(make_app(lab, make_page_routes())) as url:
        async with asyncio.timeout(60), browser(tmp_path / "p") as page:
            for device, scheme in itertools.product(DEVICES, ("light", "dark")):
                await open_playground(page, url + "/playground", device, scheme)
                await wait_for(page, OPENED)
                await fill(page, prompt=HOSTILE, system=HOSTILE)
                await page.value("document.getElementById('run').click()")
                await wait_for(page, DONE)
                shown = await page.value("document.querySelector('.written').textContent")
                assert "<script>document.title=2</script>⟨202E⟩⟨001B⟩[31m⟨0000⟩⟨2028⟩" in shown
                assert lab.engine.requests[-1].traced
                assert await page.value("document.title") == "eaglegate"
                found = "document.querySelectorAll('#panels img, #panels script').length"
                assert await page.value(found) == 0
                wide = "document.documentElement.scrollWidth - innerWidth"
                assert await page.value(wide) <= 0, "scrolls sideways"
                await shoot(page, tmp_path / f"hostile-{device}-{scheme}.png")
            await fill(page, prompt="x" * 100_000)
            await page.value("document.getElementById('run').click()")
            await wait_for(page, "document.querySelector('.panel').dataset.state == 'failed'")
            detail = "document.querySelector('.detail').textContent"
            assert "maximum context length" in await page.value(detail)
            assert page.problems == []


@pytest.mark.slow
@in_a_browser
async def test_steps_are_counted_and_rejected_drafts_shown(lab, tmp_path):
    ids = script(lab, "one two three four five six seven")
    parts = [len(step.token_ids) for step in lab.engine.script[1:]]
    expected = "0" + "".join("12"[: part - 1] + "0" for part in parts)
    with on_a_port(make_app(lab, make_page_routes())) as url:
        async with asyncio.timeout(60), browser(tmp_path / "p") as page:
            for api in ("chat", "responses", "messages"):
                await open_playground(page, f"{url}/playground?{api}")
                await wait_for(page, OPENED)
                await fill(page, api=api)
                await page.value("document.getElementById('run').click()")
                await wait_for(page, DONE)
                drafts = "[...document.querySelectorAll('.written span')].map(s => s.dataset.draft)"
                assert await page.value(f"{drafts}.join('')") == expected
                steps = len(lab.engine.script)
                numbers = await page.value("document.querySelector('.numbers').textContent")
                assert f"{len(ids)} tokens · {steps} steps" in numbers
                await page.value("document.querySelectorAll('.stepper button')[0].click()")
                place = await page.value("document.querySelector('.stepper span').textContent")
                assert place == f"step {steps} of {steps}"
                await page.value("document.querySelectorAll('.stepper button')[0].click()")
                detail = await page.value("document.querySelector('.detail').textContent")
                assert f"step {steps - 1}: verify" in detail
                assert "2 of 3 drafts accepted · planned: cost · " in detail
                assert (
                    "by depth: 0: 90, 1: 101, 2: not open · a draft pays above survival" in detail
                )
                assert 'rejected: 3: "<"' in detail
                lost = await page.value("document.querySelector('.written .lost').title")
                assert 'rejected: 3: "<"' in lost
            assert page.problems == []


DATA = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAAAAADRSSBWAAAAC0lEQVR4nGM8wQAAAZYAyhQqAnYAAAAASUVORK5CYII="
)
TRANSFER = f"""(() => {{
  const data = Uint8Array.from(atob('{DATA}'), c => c.charCodeAt(0)), files = new DataTransfer();
  files.items.add(new File([data], 'cat.png', {{ type: 'image/png' }}));
  const options = {{ bubbles: true, cancelable: true, dataTransfer: files, clipboardData: files }};
  return options;
}})()"""
RECORD = """(() => {
  const plain = window.fetch;
  window.fetch = (path, options) => {
    if (options?.body) window.sent = options.body;
    return plain(path, options);
  };
})()"""
PANEL_STATE = "document.querySelector('.panel').dataset.state"
PICTURES = "document.querySelectorAll('#pictures canvas').length"


def find_pictures(api: str, body: dict) -> list:
    """The parts of the user's message."""
    return body["input" if api == "responses" else "messages"][0]["content"]


@pytest.mark.slow
@in_a_browser
async def test_pictures_are_dropped_and_pasted_into_a_prompt(tmp_path):
    lab = SeeingLab()
    script(lab, "A cat.")
    url = f"data:image/png;base64,{DATA}"
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    parts = {
        "chat": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Hi"}],
        "responses": [
            {"type": "input_image", "image_url": url}, {"type": "input_text", "text": "Hi"},
        ],
        "messages": [{"type": "image", "source": source}, {"type": "text", "text": "Hi"}],
    }  # fmt: skip
    with on_a_port(make_app(lab, make_page_routes())) as address:
        async with asyncio.timeout(60), browser(tmp_path / "p") as page:
            for device in DEVICES:
                await open_playground(page, f"{address}/playground?{device}", device)
                await wait_for(page, OPENED)
                await page.value(RECORD)
                prompt = "document.getElementById('prompt').dispatchEvent"
                await page.value(f"{prompt}(new DragEvent('drop', {TRANSFER}))")
                await wait_for(page, f"{PICTURES} == 1")
                await page.value(f"{prompt}(new ClipboardEvent('paste', {TRANSFER}))")
                await wait_for(page, f"{PICTURES} == 2")
                await shoot(page, tmp_path / f"pictures-{device}.png")
                wide = "document.documentElement.scrollWidth - innerWidth"
                assert await page.value(wide) <= 0, "scrolls sideways"
                await page.value("document.querySelector('#pictures button').click()")
                await wait_for(page, f"{PICTURES} == 1")
            for at, (api, expected) in enumerate(parts.items(), 1):
                await fill(page, api=api, prompt="Hi")
                await page.value("document.getElementById('run').click()")
                await wait_for(page, f"document.getElementById('panels').dataset.done == '{at}'")
                assert find_pictures(api, orjson.loads(await page.value("window.sent"))) == expected
                detail = await page.value("document.querySelector('.detail').textContent")
                assert await page.value(PANEL_STATE) == "done", detail
                assert lab.widths == [2]
                await page.value("document.getElementById('curl').click()")
                copied = await page.value("document.getElementById('copied').value")
                assert "-d @- <<'EOF'" in copied and DATA in copied
            bad = TRANSFER.replace("cat.png", "cat.svg").replace("image/png", "image/svg+xml")
            await page.value(f"{prompt}(new DragEvent('drop', {bad}))")
            said = "document.getElementById('said').innerText"
            await wait_for(page, f"{said}.includes('cat.svg is not a picture in PNG, JPEG')")
            assert page.problems == []


EXAMPLES = ("chat", "tool call", "structured output", "reasoning", "repetition")


@pytest.mark.slow
@in_a_browser
async def test_every_example_is_a_request_that_every_api_takes(lab, tmp_path):
    script(lab, "one two three")
    with on_a_port(make_app(lab, make_page_routes())) as url:
        async with asyncio.timeout(60), browser(tmp_path / "p") as page:
            await open_playground(page, url + "/playground")
            await wait_for(page, OPENED)
            runs = itertools.product(("chat", "responses", "messages"), EXAMPLES)
            for at, (api, example) in enumerate(runs, 1):
                await fill(page, api=api, example=example, seed="7")
                await page.value("document.getElementById('run').click()")
                await wait_for(page, f"document.getElementById('panels').dataset.done == '{at}'")
                state = await page.value("document.querySelector('.panel').dataset.state")
                detail = await page.value("document.querySelector('.detail').textContent")
                assert state == "done", (api, example, detail)
            sent = lab.engine.requests
            assert [request.sampling.seed for request in sent] == [7] * 10 + [None] * 5
            assert sum(request.constraint is not None for request in sent) == 3
            assert page.problems == []
