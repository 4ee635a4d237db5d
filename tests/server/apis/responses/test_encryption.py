"""The keys that encrypt reasoning: given, read, made, and what is wrong with them."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.fernet import Fernet

from eaglegate.server.apis.shared.encryption import (
    CannotDecrypt,
    ReasoningCipher,
    load_or_make_keys,
    read_configured_keys,
    read_keys,
)
from eaglegate.server.cli.serve import _open_cipher
from eaglegate.server.errors import ConfigError
from eaglegate.server.settings import Settings
from eaglegate.server.store.database import sqlite_directory

ONE, TWO = (Fernet.generate_key().decode() for _ in range(2))


def cipher_of(settings) -> tuple[ReasoningCipher, list[str]]:
    notes: list[str] = []
    return _open_cipher(settings, notes.append), notes


def test_a_token_is_for_one_owner():
    cipher = ReasoningCipher([ONE])
    token = cipher.encrypt("größer", "ann")
    assert cipher.decrypt(token, "ann") == "größer"
    assert token != cipher.encrypt("größer", "ann")
    with pytest.raises(CannotDecrypt, match="another API key"):
        cipher.decrypt(token, "bob")


OTHERS = ReasoningCipher([TWO]).encrypt("text", "")


@pytest.mark.parametrize(
    "token", ["", "x", "größer", "gAAAA", OTHERS], ids=["empty", "x", "text", "cut", "other"]
)
def test_tokens_of_other_keys_are_not_decrypted(token):
    with pytest.raises(CannotDecrypt, match="other encryption keys"):
        ReasoningCipher([ONE]).decrypt(token, "")


def test_the_first_of_several_keys_encrypts(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# newest first\n\n{TWO}\n{ONE}\n")
    both, notes = cipher_of(Settings(encryption_key_file=str(file)))
    assert both.decrypt(ReasoningCipher([ONE]).encrypt("old", ""), "") == "old"
    assert ReasoningCipher([TWO]).decrypt(both.encrypt("new", ""), "") == "new"
    assert not notes
    assert read_configured_keys((ONE,), str(file)) == [ONE, TWO, ONE]


def test_a_key_is_made_beside_the_store_and_found_again(tmp_path):
    settings = Settings(responses_store=f"sqlite:///{tmp_path}/state/responses.sqlite")
    token = cipher_of(settings)[0].encrypt("text", "")
    again, notes = cipher_of(settings)
    assert again.decrypt(token, "") == "text"
    assert not notes
    (file,) = (tmp_path / "state").iterdir()
    assert file.name == "encryption.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_those_who_start_at_once_have_the_same_key(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_or_make_keys(tmp_path), range(32)))
    assert len({tuple(keys) for keys in found}) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("store", ["none", "sqlite://", "postgresql://host/base"])
def test_without_a_file_beside_it_the_key_ends_with_the_process(store):
    settings = Settings(responses_store=store)
    first, notes = cipher_of(settings)
    second, _ = cipher_of(settings)
    with pytest.raises(CannotDecrypt):
        second.decrypt(first.encrypt("text", ""), "")
    assert "until this process ends" in notes[0]
    assert sqlite_directory(store) is None


def test_a_directory_that_takes_no_file_is_no_obstacle(tmp_path):
    (tmp_path / "file").touch()
    settings = Settings(responses_store=f"sqlite:///{tmp_path}/file/responses.sqlite")
    assert "no key can be stored" in cipher_of(settings)[1][0]


@pytest.mark.parametrize(
    "content",
    ["", "# nothing\n", "short\n", f"{ONE}\nshort\n", "\xff"],
    ids=["empty", "comment", "short", "second line short", "not text"],
)
def test_a_bad_file_is_named_and_its_keys_are_not_shown(tmp_path, content):
    file = tmp_path / "keys"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=str(file)) as caught:
        read_keys(file)
    assert "short" not in str(caught.value)
    assert ONE not in str(caught.value)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_devices_and_pipes_are_no_key_files(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        read_keys(tmp_path / name)


def test_a_bad_key_and_a_missing_file_stop_the_start(tmp_path):
    with pytest.raises(ConfigError, match="key 2 is not a Fernet key"):
        cipher_of(Settings(encryption_key=(ONE, "secret")))
    with pytest.raises(ConfigError, match="cannot be read"):
        cipher_of(Settings(encryption_key_file=str(tmp_path / "none")))
