"""Startup output: progress lines, and the banner when the gateway is ready."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import TextIO, cast

from eaglegate.engine.logs import WrappedLines, make_head, open_root_log, write_line
from eaglegate.engine.types import EngineInfo
from eaglegate.server.access.cross_origin import parse_names
from eaglegate.server.access.keys import KeyRing
from eaglegate.server.generation.grammar import ParserFactory
from eaglegate.server.settings import Settings

HEARTBEAT_S = 5.0
REMARKS = ("note:", "WARNING:")
"""Prefixes of lines that are not steps; the step before them continues."""


class StartupProgress:
    """Prints the steps of startup, and a heartbeat while a step takes long.

    The heartbeat has its own thread, because imports and engine starts block the caller.
    """

    def __init__(self, out: TextIO | None = None, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._out = out or duplicate_stderr()
        self._started = time.monotonic()
        self._heartbeat_s = heartbeat_s
        self._step = "starting"
        self._as_json = False
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reported = threading.Event()
        threading.Thread(target=self._run_heartbeat, name="progress", daemon=True).start()

    def __call__(self, step: str) -> None:
        with self._lock:
            self._step = self._step if step.startswith(REMARKS) else step
            self._print(step)
        self._reported.set()

    def use(self, log_format: str) -> None:
        """Switch to the format of the log. With JSON, output of libraries becomes JSON, too."""
        self._as_json = log_format == "json"
        if self._as_json:
            wrap_output()

    def fail(self, error: Exception) -> None:
        """Close with the reason why nothing was started."""
        self.close()
        path = save_engine_log(error)
        text = f"{error}. The engine's log: {path}" if path else str(error)
        message = self._wrap(text, "error") if self._as_json else f"eaglegate: {text}"
        print(message, file=self._out)

    def announce(self, banner: str, url: str, operator: str) -> None:
        """Close with the banner on standard output, or with a log line."""
        self.close()
        if self._as_json:
            fields = {"url": url, "operator": operator}
            message = self._wrap(f"eaglegate serves {url}/v1", "info", fields)
            print(message, file=self._out, flush=True)
        else:
            print(banner, flush=True)

    def close(self) -> None:
        self._closed.set()
        self._reported.set()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _run_heartbeat(self) -> None:
        while not self._closed.is_set():
            self._reported.clear()
            if not self._reported.wait(self._heartbeat_s) and not self._closed.is_set():
                with self._lock:
                    self._print(f"  ... {self._step}")

    def _print(self, text: str) -> None:
        level = "warning" if text.lower().startswith("warning:") else "info"
        line = f"[{self.elapsed_s:6.1f} s] {text}"
        print(self._wrap(text, level) if self._as_json else line, file=self._out, flush=True)

    def _wrap(self, text: str, level: str, fields: Mapping[str, str] = MappingProxyType({})) -> str:
        head = make_head(level, "eaglegate.start")
        return write_line({**head, "message": text.strip(), **fields})


def save_engine_log(error: Exception) -> str:
    """Write the log of an engine that did not start to a file of this user's. Return its path;
    empty if there is no log, or no place for it.
    """
    detail = getattr(error, "detail", "")
    if not detail:
        return ""
    try:
        with NamedTemporaryFile(
            "w", prefix="eaglegate-start-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"{detail}\n")
    except OSError:
        return ""
    return file.name


def format_start(parts: Mapping[str, float], seconds: float) -> str:
    """Return the time of a start, and its parts of at least a tenth of a second."""
    durations = [f"{part} {time_s:.1f}" for part, time_s in parts.items() if time_s >= 0.1]
    return f"after {seconds:.1f} s" + (f": {', '.join(durations)}" if durations else "")


EXAMPLE = "What is 84 - 37?"


def format_banner(
    url: str,
    operator: str,
    model: str,
    info: EngineInfo,
    parsers: ParserFactory,
    seconds: float,
    clients: str = "",
    needs_key: bool = False,
) -> str:
    """Format the addresses, the model, the speculation setting and an example call.

    ``clients`` describes who may use the gateway.
    """
    details = {
        name: info.details[name] for name in ("vLLM", "workers", "depth") if name in info.details
    }
    facts = {
        "model": f"{model} ({info.model}), context {info.max_model_len} tokens",
        "input": info.input_summary,
        "speculation": info.speculation.summary or "off",
        **details,
        **({"advisories": ", ".join(a.name for a in info.advisories)} if info.advisories else {}),
        "tools": parsers.tool_parser or "no parser",
        "reasoning": parsers.reasoning_parser or "no parser",
        "metrics": f"{operator}/metrics",
        **({"clients": clients} if clients else {}),
        "ready": format_start(info.start_s, seconds),
    }
    width = max(map(len, facts))
    lines = [f"  {name:<{width}}  {value}" for name, value in facts.items()]
    head = [f"Dashboard: {operator}/", f"eaglegate serves {url}/v1"]
    return "\n".join(["", *head, "", *lines, "", *_format_example(url, model, needs_key), ""])


def _format_example(url: str, model: str, needs_key: bool) -> list[str]:
    key = " -H 'authorization: Bearer KEY'" if needs_key else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "{EXAMPLE}"}}]}}'
    return [
        "Try it:",
        "",
        f"  curl {url}/v1/chat/completions -H 'content-type: application/json'{key} \\",
        f"    -d '{body}'",
    ]


def describe_exposure(settings: Settings, keys: KeyRing) -> str:
    """Return a warning about access for strangers; empty if there is nothing to warn about."""
    if keys:
        return keys.describe_lockout()
    if "*" in parse_names(settings.allowed_origins):
        return (
            "WARNING: --allowed-origins * without API keys: every web page may use the model if "
            "its browser can reach this address. Name origins, or configure keys."
        )
    if settings.host in ("127.0.0.1", "::1", "localhost"):
        return ""
    return (
        f"WARNING: --host {settings.host} without API keys: everyone who reaches this address may "
        "use the model and read /metrics. Configure keys (--api-key-file), or listen on 127.0.0.1."
    )


def describe_clients(keys: KeyRing) -> str:
    """Describe the clients allowed without a key, and how to allow others; empty if keys are
    required.
    """
    if keys:
        return ""
    return (
        "this machine's names and addresses; others with --allowed-hosts NAME, web pages, "
        "extensions and desktop applications with --allowed-origins ORIGIN"
    )


def find_log_format(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return ``--log-format`` before the line is parsed, so that parse errors also have this
    format.
    """
    line = " ".join(argv).replace("--log-format ", "--log-format=").split()
    values = [word.partition("=")[2] for word in line if word.startswith("--log-format=")]
    return (values[-1] if values else environment.get("EAGLEGATE_LOG_FORMAT", "text")).lower()


def wrap_output() -> None:
    """Make JSON of the lines that libraries print, and that handlers of loaded libraries write."""
    if isinstance(sys.stderr, WrappedLines):
        return
    wrapped = {one: cast("TextIO", WrappedLines(one)) for one in (sys.stdout, sys.stderr)}
    sys.stdout, sys.stderr = wrapped[sys.stdout], wrapped[sys.stderr]
    for log in logging.root.manager.loggerDict.values():
        for handler in getattr(log, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream in wrapped:
                handler.stream = wrapped[handler.stream]


def open_log(settings: Settings) -> TextIO:
    """Open the log on standard error, and return the stream."""
    errors = duplicate_stderr()
    open_root_log(settings.log_format, settings.log_level, errors)
    if settings.log_level == "info":  # httpx logs every request to a worker
        logging.getLogger("httpx").setLevel(logging.WARNING)
    return errors


def duplicate_stderr() -> TextIO:
    """Return a copy of standard error: while an engine starts, its file descriptor belongs to the
    engine.
    """
    return os.fdopen(os.dup(2), "w", buffering=1)
