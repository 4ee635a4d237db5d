"""API keys: the file, what is refused in it, and what strangers are told."""

from __future__ import annotations

import base64
import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from eaglegate.server.__main__ import main
from eaglegate.server.access.caller import ApiKey
from eaglegate.server.access.fair_order import Priority
from eaglegate.server.access.keys import KeyRing, generate_key_entry, hash_key, load_keys
from eaglegate.server.cli.console import describe_exposure
from eaglegate.server.errors import ConfigError, TooManyRequests, Unauthenticated
from eaglegate.server.settings import Settings

FULL = """
keys:
  - name: agents
    sha256: {digest}
    priority: high
    weight: 2.5
    models: [demo]
    requests_per_minute: 600
    tokens_per_minute: 1000
    images_per_minute: 100
    concurrency: 16
    depth: 2
    expires: 2999-01-31
    admin: true
"""


def write(tmp_path, text):
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    return str(path)


def test_a_made_key_opens(tmp_path):
    key, entry = generate_key_entry("agents")
    assert key not in entry
    alone = load_keys(write(tmp_path, entry))
    ring = load_keys(write(tmp_path, "keys:\n" + entry))
    assert alone.keys == ring.keys
    assert ring.find(key).name == "agents"
    assert generate_key_entry("agents")[0] != key
    assert len(base64.urlsafe_b64decode(key.removeprefix("eg-") + "=")) == 32


def test_the_file_says_all_there_is_to_say(tmp_path):
    ring = load_keys(write(tmp_path, FULL.format(digest=hash_key("k" * 20).hex())))
    key = ring.find("k" * 20)
    assert (key.name, key.priority, key.concurrency) == ("agents", Priority.HIGH, 16)
    assert key.weight == 2.5
    assert key.admin
    assert key.may_use("demo")
    assert not key.may_use("other")
    assert key.quota is not None
    assert ring.depths == {"agents": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("keys: [{name: a, sha256: %s, weight: 0}]" % ("f" * 64), "weight.*given '0'"),
        ("keys: [{name: a, sha256: %s, key: secret}]" % ("f" * 64), "keys.0.key"),
        ("keys: [{name: secret!, sha256: %s}]" % ("f" * 64), "keys.0.name"),
        ("", "must be a list of keys, as `eaglegate key NAME`"),
        ("keys: [{name: a, sha256: %s, weight: .inf}]" % ("f" * 64), "weight"),
        ("keys: [a: b: c", "cannot be read"),
        ("other: 1", "keys"),
        ("keys: [secret-key-0123456789]", "keys.0: must be an entry with a name and a sha256$"),
        ("keys: secret-key-0123456789", "keys: must be a list$"),
        ("keys: [{name: 'a b', sha256: %s}]" % ("f" * 64), "must be 1 to 64 letters, digits"),
        ("keys: [{name: a, sha256: secret}]", "sha256: must be 64 hexadecimal digits"),
        ("keys: [{name: a, sha256: %s, concurrency: 0}]" % ("f" * 64), "must be 1 or more"),
        ("keys: [{name: a, sha256: %s, concurrency: x}]" % ("f" * 64), "must be a whole number"),
        ("keys: [{name: a, sha256: %s, priority: urgent}]" % ("f" * 64), "must be 'high'"),
        ("keys: [{name: a, sha256: %s, models: a}]" % ("f" * 64), "models: must be a list"),
        ("keys: [{name: a, sha256: %s, models: []}]" % ("f" * 64), "must have at least one item"),
        ("keys: [{name: a, sha256: %s, expires: soon}]" % ("f" * 64), r"expires: must be a date"),
        ("keys: [{name: a, sha256: %s, admin: maybe}]" % ("f" * 64), "must be true or false"),
        ("keys: [{name: a, sha256: %s, color: red}]" % ("f" * 64), "the fields are name, sha256"),
        ("keys: [{name: a}]", "sha256: is missing"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_place_and_shows_no_secret(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words) as refused:
        load_keys(write(tmp_path, text))
    assert "secret" not in str(refused.value)
    assert not re.search("Input should|String should|dictionary", str(refused.value))


def test_the_command_makes_no_name_that_a_file_refuses(capsys):
    for name in ("a:b", "a b", "a\n", "", "x" * 65):
        assert main(["key", name]) == 2
        assert "has 1 to 64 letters" in capsys.readouterr().err
    assert main(["key", "agents-2.eu"]) == 0


def test_the_file_that_the_command_appends_to_never_holds_the_key(tmp_path, capsys):
    files = {}
    for name in ("agents", "batch"):
        assert main(["key", name]) == 0
        printed = capsys.readouterr()
        files[printed.err.split()[-1]] = printed.out
    ring = load_keys(write(tmp_path, "".join(files.values())))
    for key, name in zip(files, ("agents", "batch"), strict=True):
        assert ring.find(key).name == name
        assert key not in "".join(files.values())


def test_twins_are_refused(tmp_path):
    digest = hash_key("k" * 20).hex()
    text = f"keys: [{{name: a, sha256: {digest}}}, {{name: b, sha256: {digest}}}]"
    with pytest.raises(ConfigError, match="same hash"):
        load_keys(write(tmp_path, text))
    with pytest.raises(ConfigError, match="same name"):
        load_keys(write(tmp_path, f"keys: [{{name: admin, sha256: {digest}}}]"), (), "x" * 20)


def test_keys_in_plain_text_must_be_long():
    with pytest.raises(ConfigError, match="at least 16 characters, API key 2 has 15"):
        load_keys(None, ["x" * 16, "x" * 15])
    ring = load_keys(None, ["x" * 20], "y" * 20)
    assert not ring.find("x" * 20).admin
    assert ring.find("y" * 20).admin


MINIMAL = "keys: [{{name: a, sha256: {digest}{more}}}]"


def load_one(tmp_path, more: str = "") -> ApiKey:
    digest = hash_key("k" * 20).hex()
    (key,) = load_keys(write(tmp_path, MINIMAL.format(digest=digest, more=more))).keys
    return key


def test_a_key_without_settings_is_an_ordinary_one(tmp_path):
    key = load_one(tmp_path)
    assert key == ApiKey("a", hash_key("k" * 20))
    (plain,) = load_keys(None, ["x" * 20]).keys
    for ordinary in (key, plain):
        assert (ordinary.priority, ordinary.weight, ordinary.admin) == (Priority.NORMAL, 1, False)
        assert (ordinary.quota, ordinary.concurrency, ordinary.expires) == (None, None, None)
        assert ordinary.may_use("any model")


def test_an_admin_s_key_goes_first_unless_it_has_a_class(tmp_path):
    assert load_one(tmp_path, ", admin: true").priority is Priority.OPERATOR
    assert load_one(tmp_path, ", admin: true, priority: low").priority is Priority.LOW
    digest = hash_key("k" * 20).hex()
    ring = load_keys(
        write(tmp_path, MINIMAL.format(digest=digest, more=", priority: low")), (), "y" * 20
    )
    assert ring.classes == {Priority.LOW, Priority.OPERATOR}


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "images_per_minute"])
def test_either_limit_makes_a_quota(tmp_path, limit):
    quota = load_one(tmp_path, f", {limit}: 1").quota
    assert quota is not None
    quota.take()
    quota.pay(5)
    quota.take_images(1)
    with pytest.raises(TooManyRequests):
        quota.take_images(1)
        quota.take()


@pytest.mark.parametrize(
    ("expires", "last", "zone"),
    [
        ("2027-01-31", "2027-01-31T23:59:59", UTC),
        ("2027-01-31T12:00:01", "2027-01-31T12:00:00", UTC),
        ("2027-01-31T12:00:01+02:00", "2027-01-31T12:00:00", timezone(timedelta(hours=2))),
    ],
)
def test_a_date_counts_to_its_end_and_a_time_without_a_zone_is_utc(
    tmp_path, monkeypatch, expires, last, zone
):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        key = load_one(tmp_path, f", expires: {expires}")
    finally:
        monkeypatch.undo()
        time.tzset()
    at = datetime.fromisoformat(last).replace(tzinfo=zone).timestamp()
    assert KeyRing((key,), clock=lambda: at).find("k" * 20) is key
    with pytest.raises(Unauthenticated, match="expired"):
        KeyRing((key,), clock=lambda: at + 1).find("k" * 20)


def test_an_open_address_without_keys_is_said_aloud(tmp_path):
    assert describe_exposure(Settings(), KeyRing()) == ""
    assert "WARNING" in describe_exposure(Settings(host="0.0.0.0"), KeyRing())
    assert describe_exposure(Settings(host="0.0.0.0"), load_keys(None, ["x" * 20])) == ""
    (tmp_path / "none.yaml").write_text("keys: []")
    nobody = load_keys(str(tmp_path / "none.yaml"))
    assert "every request to the API is refused" in describe_exposure(Settings(), nobody)
    assert "--allowed-origins" in describe_exposure(Settings(allowed_origins=('["*"]',)), KeyRing())
    assert describe_exposure(Settings(allowed_origins=("https://a.example",)), KeyRing()) == ""


def test_a_file_without_keys_lets_nobody_in(tmp_path):
    ring = load_keys(write(tmp_path, "keys: []"))
    assert ring
    for given in (None, "", "k" * 20):
        with pytest.raises(Unauthenticated):
            ring.find(given)
    assert not load_keys(None)


def test_a_named_key_owns_the_same_after_its_secret_changes(tmp_path):
    old, new = ("k" * 20, "n" * 20)
    owners = {
        load_keys(write(tmp_path, FULL.format(digest=hash_key(key).hex()))).find(key).owner
        for key in (old, new)
    }
    assert owners == {"key:agents"}


def test_no_named_key_owns_what_a_key_in_plain_text_does(tmp_path):
    secret = "k" * 20
    digest = hash_key(secret).hex()
    ring = load_keys(None, [secret], "y" * 20)
    owners = {key.owner for key in ring.keys}
    for name in (f"key-{digest[:8]}", "admin", "key-1", digest[:64]):
        named = load_keys(write(tmp_path, f"keys: [{{name: {name}, sha256: {'f' * 64}}}]")).keys[0]
        assert named.owner not in owners
    assert secret not in "".join(key.name + key.owner for key in ring.keys)


def test_reading_the_file_again_gives_no_quota_back(tmp_path):
    """A rotated secret keeps the name, and with it what the name has used."""
    entry = "keys: [{{name: a, sha256: {digest}, requests_per_minute: 2}}]"
    before = load_keys(write(tmp_path, entry.format(digest=hash_key("k" * 20).hex())))
    for _ in range(2):
        before.find("k" * 20).quota.take()
    after = load_keys(write(tmp_path, entry.format(digest=hash_key("n" * 20).hex())))
    after = after.succeed(before)
    with pytest.raises(Unauthenticated):
        after.find("k" * 20)
    with pytest.raises(TooManyRequests):
        after.find("n" * 20).quota.take()
