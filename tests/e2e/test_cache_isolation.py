"""A real engine does not find another key's prompt in the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eaglegate.server.access.keys import hash_key
from tests.conftest import RunningGateway, serving

pytestmark = pytest.mark.slow
KEYS = {name: f"eg-{name}-secret-of-32-bytes-or-more" for name in ("alone", "other", "b", "c")}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("isolation")
    lines = [f"- name: {name}\n  sha256: {hash_key(key).hex()}\n" for name, key in KEYS.items()]
    (folder / "keys.yaml").write_text("keys:\n" + "".join(lines))
    arguments = (f"--api-key-file={folder}/keys.yaml", "--shared-prefix-cache", "b", "c")
    with serving(folder / "serve.log", arguments) as running:
        yield running


def count_cached(gateway: RunningGateway, key: str, subject: str, **fields: str) -> int:
    text = f"Tell me about {subject}. " * 60
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    answer = httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json=body | fields,
        headers={"authorization": f"Bearer {KEYS[key]}"},
        timeout=60,
    )
    usage = answer.raise_for_status().json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_a_key_finds_its_own_prompts_and_no_other_s(gateway: RunningGateway) -> None:
    assert count_cached(gateway, "alone", "rivers") == 0
    assert count_cached(gateway, "alone", "rivers") > 200
    assert count_cached(gateway, "other", "rivers") == 0
    assert count_cached(gateway, "b", "rivers") == 0
    assert count_cached(gateway, "other", "rivers", cache_salt="key:alone:") == 0


def test_keys_that_share_find_each_other_s_prompts(gateway: RunningGateway) -> None:
    assert count_cached(gateway, "b", "mountains") == 0
    assert count_cached(gateway, "c", "mountains") > 200
    assert count_cached(gateway, "alone", "mountains") == 0
