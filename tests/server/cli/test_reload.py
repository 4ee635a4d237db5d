"""Keys and limits read again while the gateway serves: everything new, or everything as it was."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.fernet import Fernet

from eaglegate.engine.speculation.policy.policy import SpeculationPolicy
from eaglegate.server.access.admission import Admission
from eaglegate.server.access.keys import hash_key
from eaglegate.server.apis.shared.gateway import Controls
from eaglegate.server.cli import listener, reload
from eaglegate.server.cli.reload import read_reloaded
from eaglegate.server.settings import Settings

USER, BOSS = "user-key-0123456789", "boss-key-0123456789"
ENTRY = "  - {{name: {name}, sha256: {digest}, admin: {admin}, depth: 2, priority: {level}}}\n"


def entry(name: str, key: str, admin: str = "false") -> str:
    level = "high" if admin == "true" else "low"
    return ENTRY.format(name=name, digest=hash_key(key).hex(), admin=admin, level=level)


@dataclass
class Reloading:
    """A lab whose ``/admin/reload`` reads these files."""

    lab: Any
    folder: Any
    admission: Admission
    policy: SpeculationPolicy
    settings: dict[str, Any]

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    async def reload(self) -> dict[str, Any]:
        return read_reloaded([]).apply(self.lab.gateway, self.admission, self.policy)

    def describe(self) -> tuple[object, ...]:
        gateway = self.lab.gateway
        bounds, classes = self.admission.bounds, self.admission.classes
        return (gateway.keys, gateway.settings, gateway.cipher, bounds, classes, self.policy.rules)


@pytest.fixture
async def gateway(lab, tmp_path, monkeypatch):
    pipeline = lab.gateway.pipeline
    reloading = Reloading(lab, tmp_path, pipeline.admission, pipeline.policy, {})
    monkeypatch.setattr(
        reload,
        "read_again",
        lambda _argv: SimpleNamespace(settings=Settings(**reloading.settings)),
    )
    keys = reloading.write("keys.yaml", "keys:\n" + entry("boss", BOSS, "true"))
    reloading.settings |= {"api_key_file": keys}
    await reloading.reload()
    lab.gateway.controls = Controls(reloading.reload, None)
    return reloading


async def test_depths_that_the_workers_do_not_honour_are_named(gateway, caplog):
    await gateway.reload()
    assert "without effect" not in caplog.text
    gateway.lab.change_model(depth_per_request=False)
    await gateway.reload()
    assert "without effect: the depth of the API key boss" in caplog.text
    assert "--scheduler-cls eaglegate.engine.Scheduler" in caplog.text


async def ask(lab, key: str | None = None) -> int:
    headers = {} if key is None else {"x-api-key": key}
    return (await lab.get("/v1/models", headers=headers)).status


async def test_a_reload_changes_keys_bounds_timeouts_and_depths(gateway):
    gateway.write("keys.yaml", "keys:\n" + entry("user", USER) + entry("boss", BOSS, "true"))
    more = {"max_running": 7, "request_timeout_s": 5.0, "body_timeout_s": 6.0}
    gateway.settings |= more | {"encryption_key": (Fernet.generate_key().decode(),)}
    before = gateway.describe()
    answer = await gateway.lab.call("POST", "/admin/reload", headers={"x-api-key": BOSS})
    assert (answer.status, answer.json["keys"], answer.json["bounds"]["running"]) == (200, 2, 7)
    assert await ask(gateway.lab, USER) == 200
    settings = gateway.lab.gateway.settings
    assert (settings.request_timeout_s, settings.body_timeout_s) == (5, 6)
    assert gateway.policy.rules.key_depths == {"user": 2, "boss": 2}
    assert all(now != then for now, then in zip(gateway.describe(), before, strict=True))


@pytest.mark.parametrize(
    "broken", ["keys: [{name: a}]", "keys: [", "keys: " + "[" * 5000, "keys: &a [*a]", "\x00", None]
)
async def test_a_broken_file_of_either_kind_changes_nothing(gateway, broken):
    """Each file is broken while the other one has something new."""
    new_keys = "keys:\n" + entry("user", USER)
    secrets = gateway.folder / "encryption.txt"
    gateway.settings |= {"max_running": 7, "encryption_key_file": str(secrets)}
    before = gateway.describe()
    for keys, encryption in ((broken, Fernet.generate_key().decode()), (new_keys, broken)):
        for name, text in (("keys.yaml", keys), ("encryption.txt", encryption)):
            gateway.write(name, text or "")
            (gateway.folder / name).write_bytes(b"\xff\xfe" if text is None else text.encode())
        answer = await gateway.lab.call("POST", "/admin/reload", headers={"x-api-key": BOSS})
        assert (answer.status, answer.json["error"]["code"]) == (400, "bad_settings")
        assert gateway.describe() == before


@pytest.mark.parametrize("left", ["keys: []", None])
async def test_without_its_last_key_a_gateway_lets_nobody_in(gateway, caplog, left):
    """The file may be empty or no longer named: a gateway that had keys never opens."""
    gateway.write("keys.yaml", left or "")
    if left is None:
        del gateway.settings["api_key_file"]
    assert (await gateway.reload())["keys"] == 0
    assert [await ask(gateway.lab, key) for key in (None, BOSS, "x")] == [401, 401, 401]
    assert (await gateway.lab.chat()).status == 401
    assert (await gateway.lab.get("/metrics")).status == 401
    assert "every request to the API is refused" in caplog.text
    await gateway.reload()
    assert await ask(gateway.lab) == 401, "nor after another reload"
    gateway.write("keys.yaml", "keys:\n" + entry("user", USER))
    gateway.settings["api_key_file"] = str(gateway.folder / "keys.yaml")
    await gateway.reload()
    assert await ask(gateway.lab, USER) == 200


async def test_a_reload_that_breaks_is_logged_and_changes_nothing(caplog):
    async def reload():
        raise RuntimeError("the disk is gone")

    await listener._reload(reload)
    assert "settings were not reloaded; the current ones stay in force" in caplog.text
    assert "the disk is gone" in caplog.text
