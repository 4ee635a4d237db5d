"""Command lines that name workers, and the settings they then require or exclude."""

from __future__ import annotations

import pytest

from eaglegate.server.backends.remote import AddressBook, build_sources
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.errors import ConfigError
from eaglegate.server.settings import Settings

WORKER = "http://10.0.0.7:8000"


def quiet(_: str) -> None:
    pass


@pytest.mark.parametrize(
    "argv",
    [
        ["some/model", "--upstream", WORKER],
        ["--upstream", WORKER, "some/model"],
        ["--upstream=" + WORKER, "--model=some/model"],
        ["some/model", "--upstream", WORKER, "--upstream_idle_s", "60"],
    ],
)
def test_with_workers_the_model_is_only_named(argv):
    line = read_command_line("serve", argv, quiet)
    assert line.remote
    assert line.model.model == "some/model"
    assert line.settings.upstream == WORKER


def test_workers_from_the_environment(monkeypatch):
    monkeypatch.setenv("EAGLEGATE_UPSTREAM", WORKER)
    monkeypatch.setenv("EAGLEGATE_UPSTREAM_KEY", "secret")
    line = read_command_line("serve", ["some/model"], quiet)
    assert (line.settings.upstream, line.settings.upstream_key) == (WORKER, "secret")


def test_workers_from_a_file(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(f"model_tag: some/model\nupstream: {WORKER}\nmax-running: 7\n")
    line = read_command_line("serve", ["--config", str(file)], quiet)
    assert line.model.model == "some/model"
    assert (line.settings.upstream, line.settings.max_running) == (WORKER, 7)


@pytest.mark.parametrize(
    ("argv", "depth"),
    [
        ([], "auto"),
        (["--depth", "auto"], "auto"),
        (["some/model"], "auto"),
        (["--model", "some/model"], "auto"),
        (["some/model", "--depth", "3"], "3"),
        (["some/model", "--upstream", WORKER], None),
    ],
)
def test_depths_of_a_model_are_chosen_where_nobody_gives_one(argv, depth):
    if WORKER not in argv:
        pytest.importorskip("vllm")  # its parser reads the engine's flags
    assert read_command_line("serve", argv, quiet).settings.depth == depth


@pytest.mark.thorough
def test_workers_without_a_model_are_refused():
    with pytest.raises(ConfigError, match="needs the model"):
        read_command_line("serve", ["--upstream", WORKER], quiet)


def test_workers_check_their_own_acceptance():
    with pytest.raises(ConfigError, match="--require-lossless: with --upstream"):
        read_command_line(
            "serve", ["some/model", "--upstream", WORKER, "--require-lossless"], quiet
        )


def test_an_engines_flags_are_for_the_workers():
    with pytest.raises(ConfigError, match="--max-num-seqs"):
        read_command_line(
            "serve", ["some/model", "--upstream", WORKER, "--max-num-seqs", "8"], quiet
        )


async def test_credentials_of_addresses_stay_out_of_names():
    addresses = AddressBook()
    given = "http://user:secret@worker:8000,text+http://other:secret@worker:9000/v1"
    (listed,) = build_sources(Settings(upstream=given), addresses.register)
    names = await listed.read()
    assert names == {"http://worker:8000", "text+http://worker:9000"}
    assert len({addresses[name].authorization for name in names}) == 2
    assert addresses["http://worker:7000"].authorization is None
    with pytest.raises(ConfigError, match="--upstream-key") as caught:
        build_sources(Settings(upstream_dns="user:secret@worker:8000"), addresses.register)
    assert "secret" not in str(caught.value)


async def test_addresses_are_read_one_by_one():
    (listed,) = build_sources(
        Settings(upstream=f"{WORKER}, text+{WORKER}/v1,"), AddressBook().register
    )
    assert await listed.read() == {WORKER, "text+" + WORKER}
    with pytest.raises(ConfigError, match="--upstream: a worker's address"):
        build_sources(Settings(upstream="10.0.0.7:8000"), AddressBook().register)
