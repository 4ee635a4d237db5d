"""Reads the command line of ``serve`` and ``check`` before vLLM is imported, which takes seconds.

Help, unknown flags, wrong values, broken configuration files and missing model folders are reported
from here. vLLM's own parser reads the line again afterwards.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglegate.engine import vllm_flags
from eaglegate.engine.vllm_contract import describe_untested, find_vllm
from eaglegate.server.access.cross_origin import CrossOriginPolicy
from eaglegate.server.access.isolation import check_names
from eaglegate.server.access.key_classes import assign_classes
from eaglegate.server.access.keys import load_keys
from eaglegate.server.backends.plan import refuse_unknown_parsers
from eaglegate.server.cli.command_line import (
    add_settings,
    find_backend,
    gather_arguments,
    list_given_names,
)
from eaglegate.server.cli.feature_table import read_features
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import (
    add_arguments,
    add_front_end_flags,
    check_front_end_flags,
    flag,
    make_part,
    name_value,
    parse_json_object,
)
from eaglegate.server.http.connection import TlsSettings
from eaglegate.server.settings import Settings, read_settings

COMMON = {
    "speculative-config": "the draft: its method, model and num_speculative_tokens, as JSON",
    "tensor-parallel-size": "GPUs that share the model",
    "max-model-len": "longest sequence, prompt and answer, in tokens",
    "max-num-seqs": "sequences that the engine runs at a time",
    "gpu-memory-utilization": "share of each GPU's memory that the engine may use",
    "dtype": "data type of weights and activations",
    "quantization": "how the weights are quantized",
    "enable-lora": "serve LoRA adapters, which --lora-modules names",
    "enforce-eager": "run without compilation and CUDA graphs",
    "trust-remote-code": "run code that comes with the model",
}
"""The most commonly used engine flags."""
USAGE = "eaglegate {} [MODEL] [options]"
OPTIMIZATION = re.compile(r"-O=?\w+")
NO_VLLM = (
    "vLLM is not installed: pip install '.[cpu]' or '.[cuda]' in eaglegate's checkout, or name "
    "servers that generate with --upstream URL"
)
SEARCH = "--help="
"""Handled by vLLM's parser: shows a group of flags, one flag, or all."""


class OptionParser(argparse.ArgumentParser):
    """Parser whose error about an unknown flag suggests the closest one."""

    def refuse_unknown(self, unknown: Sequence[str]) -> None:
        """Print an error and exit with status 2 if there are unknown arguments."""
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggest(unknown)}")

    def _suggest(self, unknown: Sequence[str]) -> str:
        names = [option for option in self._option_string_actions if option.startswith("--")]
        options = (word.partition("=")[0] for word in unknown if word.startswith("--"))
        matches = {
            match for name in options for match in difflib.get_close_matches(name, names, n=1)
        }
        return f"; did you mean {' or '.join(sorted(matches))}?" if matches else ""


@dataclass(frozen=True, slots=True)
class FirstRead:
    """Result of the first read. ``model`` is the named model, or None for the demo."""

    settings: Settings
    model: str | None


def read_first(
    command: str, argv: Sequence[str], extra_settings: type | None = None
) -> FirstRead | None:
    """Read the gateway's own options. Return None if the engine's own parser must be used.

    ``extra_settings`` is a class of settings that only this command has. Prints help or a usage
    error and exits, like argparse. Raises ConfigError.
    """
    names = list_given_names(argv, os.environ)
    if find_backend(names) or any(word.startswith(SEARCH) for word in argv):
        return None
    parser = make_option_parser(command, extra_settings)
    arguments = list(_spell_plainly(gather_arguments(parser, argv, os.environ)))
    namespace, unknown = parser.parse_known_args(arguments)
    installation = find_vllm()
    # Another version may have flags that are unknown here; its own parser decides.
    if installation is None or installation[1].partition("+")[0] == vllm_flags.VERSION:
        parser.refuse_unknown(unknown)
    if installation is None:
        raise ConfigError(NO_VLLM)
    model = namespace.model_tag or getattr(namespace, "model", None)
    first_read = FirstRead(read_settings(namespace), model)
    if (sentence := describe_untested()) and not first_read.settings.allow_untested_vllm:
        raise ConfigError(f"{sentence}; --allow-untested-vllm tries it anyway")
    read_features(namespace)
    _check_files(first_read)
    list(check_front_end_flags(namespace))  # raises for the refused ones
    if command == "serve":  # check reports all obstacles together
        refuse_unknown_parsers(first_read.settings, namespace)
    return first_read


def make_option_parser(command: str, extra_settings: type | None = None) -> OptionParser:
    parser = OptionParser(
        prog=f"eaglegate {command}",
        usage=USAGE.format(command),
        description="MODEL is a folder or a hub name; without one, the built-in demo is served.",
        epilog="Every option can also be set in the environment (EAGLEGATE_MAX_RUNNING=64) or in "
        "the file of --config (max-running: 64). Every engine flag of `vllm serve` works unchanged "
        "(docs/flags.md). --help=all shows them all, --help=max-model-len one of them, and "
        f"--help=GROUP one group: {', '.join(vllm_flags.GROUPS)}.",
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", default=None, help=argparse.SUPPRESS)
    if extra_settings is not None:
        add_arguments(parser, extra_settings)
    common = parser.add_argument_group("engine, most used")
    for name, text in COMMON.items():
        _add_engine_flag(common, parser, name, text)
    add_settings(parser)
    add_front_end_flags(parser, is_shown=False)
    for name in vllm_flags.NAMES:
        _add_engine_flag(parser, parser, name, argparse.SUPPRESS)
    return parser


def _add_engine_flag(group: Any, parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add a placeholder for an engine flag, so that its value is not taken for the model's name."""
    spellings = (
        flag(name),
        *(key for key, long_name in vllm_flags.SHORT.items() if long_name == name),
    )
    free_spellings = [
        spelling for spelling in spellings if spelling not in parser._option_string_actions
    ]
    if not free_spellings:
        return
    options: dict[str, Any] = {"dest": name.replace("-", "_"), "default": argparse.SUPPRESS}
    if name in vllm_flags.SWITCHES:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options |= {"nargs": vllm_flags.NARGS.get(name), "metavar": name_value(name)}
    if name == "speculative-config":
        options |= {"type": parse_json_object, "metavar": "JSON"}
    group.add_argument(*free_spellings, help=text, **options)


def _spell_plainly(arguments: Sequence[str]) -> Iterator[str]:
    """Normalize ``--a_b``, and drop ``-O3`` and ``--a.b 1``, which only vLLM's parser accepts."""
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "-O":
            yield "--optimization-level"
        elif OPTIMIZATION.fullmatch(word):
            continue
        elif not word.startswith("--"):
            yield word
        elif "." not in name:
            yield name.replace("_", "-") + equals + value
        elif not equals:
            next(words, None)


def _check_files(first_read: FirstRead) -> None:
    """Check the files that the line names, if that is fast. Raises ConfigError."""
    settings = first_read.settings
    keys = load_keys(settings.api_key_file, settings.api_key, settings.admin_api_key)
    check_names(settings.shared_prefix_cache, [key.name for key in keys.keys])
    assign_classes(keys, settings.key_class)
    make_part(TlsSettings, settings).check()
    make_part(CrossOriginPolicy, settings).for_machine(settings.host)
    if first_read.model is not None and settings.preflight:
        _check_folder(first_read.model)


def _check_folder(model: str) -> None:
    """Read the model's configuration, unless the model may be on the hub. Raises ConfigError."""
    # This imports numpy, which would take a fifth of the time of --help.
    from eaglegate.engine.speculation.inspection.checkpoint import (
        NotInspectable,
        locate,
        looks_like_hub_id,
        read_config,
    )
    from eaglegate.engine.speculation.inspection.weights import InvalidCheckpoint

    if looks_like_hub_id(model) and not Path(model).exists():
        return
    try:
        read_config(locate(model))
    except NotInspectable:
        return
    except InvalidCheckpoint as fault:
        raise ConfigError(
            f"the model cannot be read: {fault.found}; {fault.advice} "
            "(--no-preflight starts anyway)"
        ) from None


def open_ports(first_read: FirstRead) -> list[socket.socket]:
    """Bind the API port, and the operator port if there is one. Raises ConfigError."""
    from eaglegate.server.cli.listener import bind_listeners

    return bind_listeners(first_read.settings)
