"""The command ``eaglegate``."""

from __future__ import annotations

import asyncio
import difflib
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from eaglegate import __version__
from eaglegate.engine.errors import EngineDead, EngineStartError
from eaglegate.engine.orphan import die_with_parent
from eaglegate.server.access.keys import generate_key_entry
from eaglegate.server.backends.line import CommandLine, read_engine_arguments
from eaglegate.server.backends.plan import plan_gateway
from eaglegate.server.cli.command_line import read_command_line
from eaglegate.server.cli.console import StartupProgress, find_log_format
from eaglegate.server.cli.feature_table import exists, find_command, list_commands, load
from eaglegate.server.errors import ConfigError

LAB = ("eaglegate.lab", "tqdm")
"""The lab, and the packages of its extra."""
COMMANDS = (
    ("serve [MODEL]", "serve MODEL, or the built-in demo, on an OpenAI-compatible API"),
    ("check [MODEL]", "show what serve would run with these options, and what would stop it"),
    ("parse", "read model output on stdin, print what the parsers make of it"),
    ("top", "show the live numbers of a running gateway in the terminal"),
    ("key NAME", "create an API key and its entry for --api-key-file"),
    ("version", "print the version"),
)
LAB_COMMANDS = (
    ("prove [MODEL]", "run the engine of serve with and without its draft, and check what it does"),
    ("bench", "measure a server, or the demo with and without its draft, under load"),
    ("replay FILE", "send captured requests again, and compare settings or the recorded run"),
    ("drafts compare", "find the draft that suits the captured traffic, without serving any"),
    ("drafts log", "show every candidate of the improvement loop and its verdict"),
    ("improve", "tune the served draft on captured traffic, and promote better drafts"),
)


def list_usages() -> list[tuple[str, str]]:
    """Return each command that is installed, as it is used, and its purpose."""
    return [*COMMANDS, *list_commands().items(), *(LAB_COMMANDS if exists("eaglegate.lab") else ())]


def format_usage() -> str:
    rows = "\n".join(f"  {usage:<14}  {summary}" for usage, summary in list_usages())
    return (
        f"usage: eaglegate COMMAND [options]\n\n{rows}\n\n"
        "`eaglegate COMMAND --help` shows the options of a command."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return 0 on success, 1 if something could not be started, 2 for wrong
    usage.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command, command_arguments = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "serve":
        return _with_settings(command, command_arguments)
    try:
        try:
            return _run(command, command_arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has left, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(command: str, arguments: list[str]) -> int:
    if (module := find_command(command)) is not None:
        return int(
            import_module(module).main([command, *arguments] if command == "canary" else arguments)
        )
    match command:
        case "check":
            return _with_settings(command, arguments)
        case "prove":
            return _prove(arguments)
        case "parse":
            return int(import_module("eaglegate.server.cli.parse").main(arguments))
        case "bench" | "replay":
            return int(_lab(f"measure.{command}_command").main(arguments))
        case "drafts" if arguments[:1] == ["log"]:
            return int(_lab("improve.ledger_command").main(arguments[1:]))
        case "improve":
            return int(_lab("improve.command").main(arguments))
        case "drafts":
            return int(_lab("measure.drafts_command").main(arguments))
        case "top":
            return int(import_module("eaglegate.server.cli.top.command").main(arguments))
        case "key":
            return _key(arguments)
        case "version" | "--version":
            print(__version__)
            return 0
        case "" | "-h" | "--help" | "help":
            print(format_usage())
            return 0
    names = [usage.split()[0] for usage, _ in list_usages()]
    matches = difflib.get_close_matches(command, names, n=1)
    advice = f"; did you mean {matches[0]}?" if matches else ""
    print(
        f"eaglegate: there is no command '{command}'{advice}\n\n{format_usage()}", file=sys.stderr
    )
    return 2


def _lab(name: str) -> ModuleType:
    """Import a module of the lab, which nothing else in the gateway imports. Exits if it or its
    extra is missing.
    """
    try:
        return import_module(f"eaglegate.lab.{name}")
    except ModuleNotFoundError as error:
        if error.name not in LAB:
            raise
        print(
            f"eaglegate: this command needs {error.name}, which is part of the lab: "
            "pip install '.[lab]' in eaglegate's checkout",
            file=sys.stderr,
        )
        raise SystemExit(2) from None


def _key(names: list[str]) -> int:
    if len(names) != 1 or names[0].startswith("-"):
        print("usage: eaglegate key NAME", file=sys.stderr)
        return 2
    try:
        key, entry = generate_key_entry(names[0])
    except ValueError as error:
        print(f"eaglegate key: {error}", file=sys.stderr)
        return 2
    # Standard output may go to the key file, which must not hold the key itself.
    print(f"Give this key to {names[0]}; it is not stored:\n{key}", file=sys.stderr)
    print(entry, end="")
    return 0


def _prove(argv: list[str]) -> int:
    """Run ``prove``. Return 0 if all checks passed, 1 if one failed, 3 if none failed but one was
    inconclusive.
    """
    if any(word.partition("=")[0] == "--server" for word in argv):
        return int(_lab("prove.server").main(argv))
    progress = StartupProgress()
    try:
        ProveSettings = _lab("prove.settings").ProveSettings

        line = read_command_line("prove", argv, progress, ProveSettings)
        if line.remote:
            raise ConfigError("prove starts the engines it checks: run it where vLLM runs")
        prove = _lab("prove.command").prove
        return int(prove(line, progress))
    except ConfigError as error:
        progress.close()
        print(f"eaglegate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        progress.close()


def _with_settings(command: str, argv: list[str]) -> int:
    progress = StartupProgress()
    progress.use(find_log_format(argv, os.environ))
    try:
        if command == "check":
            line = read_command_line(command, argv, progress)
            progress.close()
            return _check(line)
        gc.disable()  # imported objects stay alive; ServeCommand freezes them
        line = read_command_line(command, argv, progress)
        progress.use(line.settings.log_format)
        from eaglegate.server.cli.serve import ServeCommand

        return ServeCommand(line, progress).run()
    except (ConfigError, EngineStartError, EngineDead) as error:
        progress.fail(error)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        gc.enable()
        progress.close()


def _check(line: CommandLine) -> int:
    from eaglegate.engine.preflight import make_plan
    from eaglegate.server.cli.check import check, check_workers

    if line.remote:
        backend = load(line.backend)(line, lambda _: None)
        answers = asyncio.run(backend.ask_workers())
        report = check_workers(backend.facts, answers, plan_gateway(line.settings, line.model))
    else:
        # A line with a model is checked as it is, so that lines for other machines can be checked.
        source = read_engine_arguments(line.namespace) if line.demo else line.namespace
        report = check(make_plan(source, _plan_adapters(line)), plan_gateway(line.settings, source))
    print(report.text)
    return report.status


def _plan_adapters(line: CommandLine) -> dict[str, str]:
    """Return the folders of ``--lora-modules`` by name. Raises ConfigError."""
    modules = getattr(line.namespace, "lora_modules", None)
    if not modules:
        return {}
    from eaglegate.server.backends.adapters import read_adapters

    names = getattr(line.namespace, "served_model_name", None) or ()
    is_enabled = bool(getattr(line.namespace, "enable_lora", False))
    return read_adapters(modules, is_enabled, (names,) if isinstance(names, str) else names)


die_with_parent()  # engine processes import this module, too

if __name__ == "__main__":
    sys.exit(main())
