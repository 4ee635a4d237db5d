"""Flags, environment, file: one parser, a clear order, errors that name the flag."""

from __future__ import annotations

import argparse
from dataclasses import fields

import pytest

from eaglegate.server.cli.command_line import gather_arguments
from eaglegate.server.cli.serve import store_limits
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import add_arguments, make_part
from eaglegate.server.settings import Settings, read_settings
from eaglegate.server.store.base import Retention, StoreLimits


def read(argv, environ=None):
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--seed", type=int, default=argparse.SUPPRESS)
    add_arguments(parser, Settings)
    namespace = parser.parse_args(gather_arguments(parser, argv, environ or {}))
    return namespace, read_settings(namespace)


@pytest.fixture
def read_file(tmp_path):
    """Reads a command line behind a file of this text."""
    path = tmp_path / "c.yaml"

    def read_file(text, *argv, environ=None):
        path.write_text(text)
        return read(["--config", str(path), *argv], environ)

    return read_file


def test_a_conversation_is_at_most_as_large_as_a_body():
    assert store_limits(Settings()) == StoreLimits()
    assert store_limits(Settings(max_body_bytes=5000)) == StoreLimits(bytes=5000)


def test_stored_responses_are_bounded_by_settings():
    given = ["--responses-most", "3", "--responses-bytes", "4000", "--responses-key-bytes", "500"]
    settings = read([*given, "--responses-retention-s", "60"])[1]
    assert make_part(Retention, settings) == Retention(60, 3, 4000, 500)
    assert make_part(Retention, Settings()) == Retention()
    with pytest.raises(ConfigError, match="--responses-key-bytes"):
        Settings(responses_key_bytes=0)


@pytest.mark.parametrize("argv", [["--drain-s", "nan"], ["--drain-s=inf"], ["--api-key-file", ""]])
def test_numbers_are_finite_and_texts_not_empty(argv):
    """An empty text is usually an unset variable of a shell."""
    with pytest.raises(argparse.ArgumentError, match=r"must be a finite number|must not be empty"):
        read(argv)


def test_a_flag_of_several_values_given_twice_has_them_all(read_file):
    argv = ["--workloads", "one", "two", "--workloads", "three"]
    assert read_file("workloads: [file]\n", *argv)[1].workloads == ("one", "two", "three")
    assert read_file("workloads: [file]\n")[1].workloads == ("file",)


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file(read_file):
    text = "port: 1\nhost: file\nseed: 7\nlog-level: debug\n"
    environ = {"EAGLEGATE_PORT": "2", "EAGLEGATE_HOST": "env"}
    namespace, settings = read_file(text, "--port", "3", environ=environ)
    assert (settings.port, settings.host, settings.log_level) == (3, "env", "debug")
    assert namespace.seed == 7


NUMBERS = [
    item.name
    for item in fields(Settings)
    if any(kind in str(item.type) for kind in ("int", "float"))
]


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_is_negative(name):
    flag = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError, match=f"{flag} must be .*; given -1"):
        read([f"{flag}=-1"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: [1, 2]", r"c\.yaml: port takes one value; given \["),
        ("port: []", r"c\.yaml: port takes one value; given \["),
        ("prot: 1", "there is no flag --prot"),
        ("host: x\nport: [1\n", "^.*line 3, column 1: expected ',' or ']', but got '<.*>'$"),
        ("default-chat-template-kwargs: &a {x: *a}", "cannot be read: it is nested"),
        ("port: &a [*a]", "cannot be read: it is nested"),
        ("[" * 5000, "cannot be read: it is nested"),
        ("default-chat-template-kwargs: {1: 2}", "default-chat-template-kwargs cannot be written"),
        ("port: [!!binary aGk=]", "port cannot be written as JSON"),
        ("preflight: enabled", r"c\.yaml: preflight must be one of .* given 'enabled'"),
    ],
)
def test_a_broken_file_is_an_error(read_file, text, words):
    with pytest.raises(ConfigError, match=words):
        read_file(text)


def test_lists_and_switches_in_file_and_environment(read_file, tmp_path):
    read_file("served-model-name: [a, b]\nenable-auto-tool-choice: true\n")
    settings = read([], {"EAGLEGATE_CONFIG": str(tmp_path / "c.yaml")})[1]
    assert settings.served_model_name == ("a", "b")
    assert settings.enable_auto_tool_choice
    environ = {"EAGLEGATE_SERVED_MODEL_NAME": "x,y", "EAGLEGATE_ENABLE_AUTO_TOOL_CHOICE": "0"}
    settings = read([], environ)[1]
    assert settings.served_model_name == ("x", "y")
    assert not settings.enable_auto_tool_choice


def test_json_settings():
    settings = read(["--default-chat-template-kwargs", '{"enable_thinking": false}'])[1]
    assert settings.default_chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--port", "70000"], "--port must be from 0 to 65535; given 70000"),
        (["--max-body-bytes", "0"], "--max-body-bytes must be above 0; given 0"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml cannot be read"),
        (["--config", "/dev/zero"], "--config /dev/zero cannot be read: it has more than"),
        (["--otlp-endpoint", "localhost:4318"], "--otlp-endpoint must begin with http://"),
        (["--depth=deep"], "--depth must be a number or auto; given deep"),
        (["--depth=-1"], "--depth must be a number or auto; given -1"),
        (["--depth=1.5"], "--depth must be a number or auto; given 1.5"),
        (["--depth", "auto", "--upstream", "http://worker:8000"], "PlanningScheduler"),
    ],
)
def test_errors_name_flag_value_and_rule(argv, words):
    with pytest.raises(ConfigError, match=words):
        read(argv)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"EAGLEGATE_PREFLIGHT": "enabled"}, "EAGLEGATE_PREFLIGHT must be one of 1, .*enabled"),
        ({"EAGLEGATE_MAX_RUNING": "5"}, "MAX_RUNING.*did you mean EAGLEGATE_MAX_RUNNING?"),
        ({"EAGLEGATE_QQQQQ": "5"}, "EAGLEGATE_QQQQQ: there is no flag --qqqqq$"),
    ],
)
def test_no_value_of_the_environment_is_swallowed(environ, words):
    with pytest.raises(ConfigError, match=words):
        read([], environ)


@pytest.mark.parametrize(("word", "on"), [("1", True), ("ON", True), ("no", False), ("0", False)])
def test_a_switch_can_be_set_either_way(word, on):
    assert read([], {"EAGLEGATE_PREFLIGHT": word})[1].preflight is on


def test_an_empty_value_of_the_environment_counts_as_not_given():
    environ = {"EAGLEGATE_PREFLIGHT": "", "EAGLEGATE_PORT": "", "VLLM_API_KEY": ""}
    assert read([], environ)[1] == Settings()


def test_service_variables_of_kubernetes_are_no_settings():
    environ = {
        "EAGLEGATE_SERVICE_HOST": "10.0.0.1",
        "EAGLEGATE_SERVICE_PORT": "8000",
        "EAGLEGATE_SERVICE_PORT_HTTP": "8000",
        "EAGLEGATE_PORT": "tcp://10.0.0.1:8000",
        "EAGLEGATE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "EAGLEGATE_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert read([], environ)[1] == Settings()


def test_a_switch_in_the_file_may_be_quoted(read_file):
    assert not read_file('preflight: "off"\n')[1].preflight


@pytest.mark.parametrize(("given", "fixed"), [("auto", None), ("3", 3), ("0", 0)])
def test_a_depth_is_a_number_or_auto(given, fixed):
    settings = read(["--depth", given])[1]
    assert (settings.depth, settings.fixed_depth) == (given, fixed)
    assert read([])[1].fixed_depth is None


def test_defaults_of_a_part_are_its_own():
    kinds = {item.metadata["of"][0] for item in fields(Settings) if "of" in item.metadata}
    assert len(kinds) == 9
    for kind in kinds:
        assert make_part(kind, Settings()) == kind()
