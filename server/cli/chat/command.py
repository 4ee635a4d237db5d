"""``eaglegate chat``: try any OpenAI-compatible endpoint from the terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eaglegate.server.cli.chat.endpoint import OURS, ChatEndpoint, EndpointFailed
from eaglegate.server.cli.chat.session import (
    ChatConversation,
    ChatSession,
    is_terminal,
    make_output,
    read_terminal_line,
    read_tools,
)
from eaglegate.server.cli.harmless import make_harmless


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eaglegate chat",
        description="Talk to any OpenAI-compatible endpoint. In a pipe, standard input is the "
        "question and standard output the answer.",
    )
    parser.add_argument("url", help="address, with or without /v1: http://127.0.0.1:8000")
    parser.add_argument("question", nargs="?", help="ask this, print the answer and exit")
    parser.add_argument("--model", help="model name (default: the first that the endpoint lists)")
    parser.add_argument("--system", default="", help="system prompt")
    parser.add_argument(
        "--tools", type=Path, metavar="FILE", help="JSON file with tool definitions, as in the API"
    )
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--depth", type=int, help="depth of speculation (num_speculative_tokens; 0: no drafts)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=JSON", type=read_field,
        help="any other field of the request, such as reasoning_effort=low; may be repeated",
    )  # fmt: skip
    parser.add_argument("--reasoning", action="store_true", help="print reasoning in a pipe, too")
    parser.add_argument(
        "--key", default=os.environ.get("EAGLEGATE_API_KEY"), help="API key [EAGLEGATE_API_KEY]"
    )
    return parser


def read_field(text: str) -> tuple[str, Any]:
    """Parse ``FIELD=JSON``. A value that is not JSON is text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(argv: Sequence[str]) -> int:
    """Run the command. Return 1 if the endpoint fails in a pipe or at the start, 130 after
    Ctrl-C.
    """
    parser = make_parser()
    options = parser.parse_args(argv)
    try:
        fields = make_fields(options)
    except (OSError, ValueError) as error:
        parser.error(f"--tools {options.tools}: {error}")
    endpoint = ChatEndpoint(options.url, options.key)
    try:
        return _chat(endpoint, options, fields)
    except EndpointFailed as error:
        print(make_harmless(f"eaglegate chat: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        endpoint.close()


def make_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of every request except messages. Raises OSError and ValueError for
    --tools.
    """
    fields = {
        "model": options.model,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "num_speculative_tokens": options.depth,
        "tools": options.tools and read_tools(options.tools.read_text(encoding="utf-8")),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return {name: value for name, value in fields.items() if value is not None} | dict(options.set)


def _chat(endpoint: ChatEndpoint, options: argparse.Namespace, fields: Mapping[str, Any]) -> int:
    fields = _choose_model(endpoint, fields)
    output = make_output(options.reasoning)
    conversation = ChatConversation(fields, options.system)
    if options.question is not None or not is_terminal(sys.stdin, sys.stdout):
        question = sys.stdin.read() if options.question is None else options.question
        return ChatSession(endpoint, conversation, output).ask_once(question)
    output.remark(f"{fields['model']} at {endpoint.url}; /help lists the commands, Ctrl-D ends")
    return ChatSession(endpoint, conversation, output, read_terminal_line()).run()


def _choose_model(endpoint: ChatEndpoint, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with a model, and with a speculation report if the endpoint supports it."""
    try:
        models = endpoint.list_models()
    except EndpointFailed:
        if "model" not in fields:
            raise
        models = []
    if not models and "model" not in fields:
        raise EndpointFailed(f"{endpoint.url} lists no model: name one with --model")
    name = fields.get("model") or models[0]["id"]
    ours = any(model.get("owned_by") == OURS for model in models)
    report = {"per_request_spec_decode_metrics": "summary"} if ours else {}
    return {**report, **fields, "model": name}
