"""data: URLs as clients write them, and as they should not."""

from __future__ import annotations

import base64
import time

import pytest

from eaglegate.text.media.data_url import read_data_url

DATA = bytes(range(256)) + b"\xfb\xff\xbf\xfe"
TEXT = base64.b64encode(DATA).decode()
MAX_BYTES = 1000


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"DATA:IMAGE/PNG;BASE64,{TEXT}",
        f"data:;base64,{TEXT}",
        f"data:image/png; name=cat.png; base64,{TEXT}",
        f"data:image/png;base64, {TEXT}\n",
        "data:image/png;base64,\r\n" + "\r\n".join(TEXT[i : i + 76] for i in range(0, 400, 76)),
        f"data:image/png;base64,{TEXT.rstrip('=')}",
        f"data:image/png;base64,{TEXT}====",
        "data:image/png;base64," + TEXT.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D"),
    ],
    ids=lambda url: url[:30],
)
def test_accepted(url) -> None:
    assert read_data_url(url, MAX_BYTES) == DATA


@pytest.mark.parametrize(
    "url, fragment",
    [
        ("data:image/png;base64", "no ';base64,'"),
        ("data:image/png,%89PNG", "no ';base64,'"),
        (f"data:image/png;base64;charset=utf-8,{TEXT}", "no ';base64,'"),
        (f"data:image/png;base64,{TEXT[:21]}", "this one has 1"),
        (f"data:image/png;base64,{TEXT[:4]}=={TEXT[6:]}", "another character"),
        ("data:image/png;base64,iVBORw0K_-__", "another character"),
        ("data:image/png;base64,iVBO%52w0K", "another character"),
        ("data:image/png;base64,iVBORw0K\u00e4", "another character"),
        ("data:image/png;base64,iVBORw0K\ud800", "another character"),
        ("data:image/png;base64,{{ images }}", "another character"),
    ],
    ids=lambda text: text[:30].encode("ascii", "replace").decode(),
)
def test_refused(url, fragment) -> None:
    with pytest.raises(ValueError, match=r"^(A|The base64 of a) data: URL ") as refusal:
        read_data_url(url, MAX_BYTES)
    assert fragment in str(refusal.value)


def test_size_is_checked_before_decoding() -> None:
    assert read_data_url(f"data:;base64,{'A' * 1332}", MAX_BYTES) == bytes(999)
    with pytest.raises(ValueError, match="at most 1000 bytes; this one has 1002"):
        read_data_url(f"data:;base64,{'!' * 1336}", MAX_BYTES)


@pytest.mark.parametrize("unit", ["%2B", "%41", "=", " ", "\n", "A\n", ",", "%", "A"])
def test_large_urls_take_little_time(unit) -> None:
    url = "data:;base64," + unit * (8_000_000 // len(unit))
    start = time.process_time()
    try:
        read_data_url(url, 20 << 20)
    except ValueError as refusal:
        assert len(str(refusal)) < 200
    assert time.process_time() - start < 1
