"""Take the pictures of the documentation from a real gateway, with Debian's chromium.

    make serve                                               # in another terminal
    .venv/bin/python -m scripts.screenshots http://127.0.0.1:8000

First sends the gateway some questions, so that the page has content. The pictures are committed,
so look at them first.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.observability.test_browser import Browser, browser, show

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
QUALITY = 80
WEATHER = json.loads((FOLDER.parent / "examples" / "weather_tool.json").read_text("utf-8"))
QUESTIONS: Sequence[dict[str, Any]] = (
    {"content": "What is 84 - 37?"},
    {"content": "What is EAGLE 3.1?"},
    {"content": "Count from 1 to 20.", "temperature": 0.8},
    {"content": "What is the weather in Oslo?", "tools": WEATHER},
    {"content": "Give me a JSON object.", "response_format": {"type": "json_object"}},
    {"content": "A poem, please.", "temperature": 1.6},
)
ROUNDS = 8

RUN = """new Promise(done => {
  document.getElementById("prompt").value = "What is 84 - 37?";
  const beside = document.getElementById("beside");
  const plain = [...beside.options].findIndex(o => /no speculation/.test(o.text));
  beside.selectedIndex = Math.max(1, plain);
  document.getElementById("run").click();
  const look = () => document.getElementById("stop").disabled ? done(true) : setTimeout(look, 50);
  setTimeout(look, 500);
})"""
EXPLAIN = """new Promise(done => {
  [...document.querySelectorAll("#requests tbody tr")].at(1).click();
  const box = document.getElementById("explained");
  const look = () => box.hidden ? setTimeout(look, 50) : done(true);
  look();
})"""


class Picture(NamedTuple):
    """Picture of the page: its place, device, and the script that runs before it."""

    name: str
    path: str
    device: str
    scheme: str
    script: str = ""
    element: str = ""
    """Part that is shown, or "" for the whole page."""
    height: int = 0
    """Rows of the page that are shown, or 0 for all."""


PICTURES = (
    Picture("operate", "/", "desk", "light", height=900),
    Picture("explain", "/", "desk", "light", EXPLAIN, "explained"),
    Picture("playground", "/playground", "desk", "light", RUN),
)


async def ask(url: str) -> None:
    """Send some traffic of several kinds."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        for _ in range(ROUNDS):
            await asyncio.gather(*(_ask_one(client, dict(fields)) for fields in QUESTIONS))


async def _ask_one(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": fields.pop("content")}]
    body = {"model": "demo", "max_tokens": 120, "messages": messages, **fields}
    (await client.post("/v1/chat/completions", json=body)).raise_for_status()


async def take(page: Browser, url: str, picture: Picture) -> None:
    """Take one picture of the page."""
    await show(page, url.rstrip("/") + picture.path, picture.device, picture.scheme)
    if picture.script:
        await page.value(picture.script)
    await asyncio.sleep(0.5)
    where = f"document.getElementById('{picture.element}')" if picture.element else "document.body"
    rect = await page.value(
        f"(r => [r.x, r.y + scrollY, r.width, r.height])({where}.getBoundingClientRect())"
        ".map(Math.round).join(' ')"
    )
    x, y, width, height = map(int, rect.split())
    clip = {"x": x, "y": y, "width": width, "height": picture.height or height, "scale": 1}
    shot = await page.call(
        "Page.captureScreenshot",
        format="webp", quality=QUALITY, clip=clip, captureBeyondViewport=True,
    )  # fmt: skip
    (FOLDER / f"{picture.name}.webp").write_bytes(base64.b64decode(shot["data"]))


async def main(url: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    await ask(url)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with browser(folder / "profile") as page:
            for picture in PICTURES:
                await take(page, url, picture)
    for path in sorted(FOLDER.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
