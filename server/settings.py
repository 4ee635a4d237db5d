"""Settings of the gateway, and their command-line flags.

A setting is one field; its flag, environment name and help follow from it. The field is declared
below the ``Heading`` that it has in ``--help``. The engine's own flags are read by the same parser,
so they can be given in the file and the environment as well
(``eaglegate.server.cli.command_line``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from eaglegate.engine.errors import redact
from eaglegate.engine.fleet.types import FleetSettings
from eaglegate.engine.remote.upstream import ConnectionSettings
from eaglegate.engine.supervision.policy import SupervisionTimeouts
from eaglegate.server.access.admission import AdmissionLimits
from eaglegate.server.access.cross_origin import CrossOriginPolicy
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import Heading, flag, read_into, setting, setting_of
from eaglegate.server.http.connection import TlsSettings
from eaglegate.server.http.response import StreamTiming
from eaglegate.server.store.base import Retention
from eaglegate.text.media.hosts import parse_host
from eaglegate.text.media.source import ImageLimits

POSITIVE = (
    "responses_retention_s", "responses_most", "responses_bytes",
    "responses_key_bytes",
    "max_body_bytes", "first_event_grace_s", "keep_alive_s",
    "engine_start_s", "engine_hang_s", "engine_stall_s", "engine_wait_s",
    "max_running", "max_queued_tokens", "body_timeout_s", "reader_timeout_s",
    "upstream_connect_s", "upstream_first_token_s", "upstream_idle_s", "upstream_start_s",
    "max_connections", "max_connections_per_client", "max_images", "max_image_bytes",
    "max_image_pixels",
)  # fmt: skip
"""Settings that must be above 0."""
NOT_NEGATIVE = (
    "upstream_probe_s", "step_timing_s", "max_queued", "request_timeout_s",
    "drain_s", "memory_limit", "engine_stable_s", "engine_failures", "continuations",
)  # fmt: skip
"""Settings that must be 0 or more."""
PORTS = ("port", "admin_port")
NUMBERS: tuple[tuple[tuple[str, ...], str, Callable[[float], bool]], ...] = (
    (PORTS, "from 0 to 65535", lambda value: 0 <= value <= 65535),
    (POSITIVE, "above 0", lambda value: value > 0),
    (NOT_NEGATIVE, "0 or more", lambda value: value >= 0),
)
"""Settings, their rule, and its test."""
SECRETS = (
    "api_key", "admin_api_key", "encryption_key", "upstream_key", "ssl_keyfile_password",
    "responses_store",
)  # fmt: skip
"""Settings that are secret or may contain a secret."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the gateway itself. The engine has its own flags.

    The default of ``setting_of`` is the default of the component that the setting belongs to.
    """

    SERVER: ClassVar = Heading("Address and model names")
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all")
    port: int = setting(8000, "port to listen on; 0 picks a free one")
    reuse_port: bool = setting(
        False, "share the port with other gateways on this host; the kernel divides connections"
    )
    served_model_name: tuple[str, ...] = setting(
        (), "names that clients may use for the model; the first is shown"
    )
    root_path: str = setting("", "path prefix under which a proxy serves this gateway")

    FORMATS: ClassVar = Heading("Formats of the model")
    tool_call_parser: str | None = setting(None, "tool-call format of the model")
    reasoning_parser: str | None = setting(None, "reasoning format of the model")
    reasoning_field: str = setting(
        "both",
        "name of the reasoning in chat completions",
        choices=("both", "reasoning", "reasoning_content"),
    )
    chat_template: str | None = setting(None, "chat template: a file or the template itself")
    default_chat_template_kwargs: dict[str, Any] = setting(
        {}, "JSON object passed to the chat template with every request"
    )
    chat_template_content_format: str = setting(
        "auto",
        "form of message content in the chat template: text, or a list of parts",
        choices=("auto", "string", "openai"),
    )
    special_tokens_in_messages: str = setting(
        "text",
        "how text in messages that spells a special token, such as <|im_end|>, is read: as text, "
        "or as the token, like in vllm serve",
        choices=("text", "parse"),
    )
    trust_request_chat_template: bool = setting(
        False, "let requests bring a chat template, which runs in a process with limits"
    )
    repair_tool_calls: bool = setting(
        True, "repair arguments of tool calls that have only one possible meaning"
    )
    vllm_parser_fallback: bool = setting(False, "without effect; 0.4.0 will not accept it")
    enable_auto_tool_choice: bool = setting(
        False, "accepted for compatibility with vllm serve; a tool-call parser is enough"
    )

    SPECULATION: ClassVar = Heading("Speculation")
    depth: str | None = setting(
        None,
        "draft tokens per step for requests that set none: a number, or `auto` to choose it at "
        "every step by expected tokens per second. The default is auto, except for workers, which "
        "choose for themselves",
        metavar="N|auto",
    )
    step_timing_s: float = setting(
        3.0,
        "seconds that startup may spend on timing steps for --depth auto; other step times are "
        "learnt from traffic",
    )
    require_lossless: bool = setting(
        False,
        "refuse to start with a speculation setting that may change the text, such as "
        "rejection_sample_method synthetic",
    )
    strict_advisories: bool = setting(
        False,
        "refuse to start, or refuse a worker, with a version and settings of vLLM that are known "
        "to damage text or to lose a draft",
    )
    draft_store: str | None = setting(
        None,
        "folder for copies of drafts that are loaded while serving, which keeps a promoted draft "
        "across restarts. The default is a temporary folder",
        metavar="FOLDER",
    )
    preflight: bool = setting(True, "refuse to start if `eaglegate check` finds an obstacle")
    allow_untested_vllm: bool = setting(
        False,
        "start with an untested version of vLLM that differs in parts that the gateway uses, "
        "without the promises that these affect",
    )

    KEYS: ClassVar = Heading("API keys and operators")
    api_key: tuple[str, ...] = setting(
        (), "API keys of clients; better in the environment or a file than on a command line"
    )
    api_key_file: str | None = setting(
        None, "YAML file of hashed API keys with names and limits; read again on SIGHUP"
    )
    shared_prefix_cache: tuple[str, ...] = setting(
        (),
        "names of API keys whose prompts may share the engine's prefix cache, or `all`; every "
        "other named key has its own cache, so that no key can detect another's prompts",
        metavar="KEY",
    )
    key_class: tuple[str, ...] = setting(
        (),
        "classes of API keys in the engine's steps: `NAME=latency` protects a key's time per "
        "output token from other keys (`NAME=latency:30ms` sets an objective), "
        "`NAME=batch:WEIGHT` gives a share of the remaining capacity; a key without a class is "
        "`batch:1`",
        metavar="NAME=CLASS",
    )
    admin_api_key: str | None = setting(None, "API key that also opens operator paths")
    admin_port: int | None = setting(
        None, "serve operator paths (/, /metrics, /debug, /admin) on this port only"
    )
    admin_host: str = setting("127.0.0.1", "address of --admin-port")

    WORKERS: ClassVar = Heading("Workers instead of an engine")
    upstream: str | None = setting(
        None,
        "vLLM servers that generate instead of an engine in this process: "
        "http://HOST:PORT, or text+http://HOST:PORT for servers that speak text only",
        metavar="URL[,URL...]",
    )
    upstream_file: str | None = setting(
        None, "file of workers' URLs, one per line; read again when it changes"
    )
    upstream_dns: str | None = setting(
        None, "HOST:PORT of a name whose addresses are workers, such as a headless service"
    )
    upstream_key: str | None = setting_of(
        ConnectionSettings,
        "key",
        "API key of the workers; better in the environment than on a command line",
    )
    upstream_connect_s: float = setting_of(
        ConnectionSettings, "connect_s", "seconds a worker may take to accept a connection"
    )
    upstream_first_token_s: float = setting_of(
        ConnectionSettings, "first_token_s", "seconds to a request's first token from a worker"
    )
    upstream_idle_s: float = setting_of(
        ConnectionSettings, "idle_s", "seconds a worker may pause within a stream"
    )
    upstream_start_s: float = setting_of(
        FleetSettings, "start_s", "seconds to wait for a worker that is loading"
    )
    upstream_probe_s: float = setting(
        20.0,
        "seconds that the probe of a worker that joins or comes back may take; 0 for no probe",
    )
    session_header: str = setting(
        "x-session-id", "header that names a session, whose requests go to the same worker"
    )

    LIMITS: ClassVar = Heading("Limits")
    max_running: int = setting_of(AdmissionLimits, "running", "maximum sequences in the engine")
    max_queued: int = setting_of(
        AdmissionLimits, "queued", "requests that may wait; further ones get 429"
    )
    max_queued_tokens: int = setting_of(
        AdmissionLimits, "queued_tokens", "prompt tokens that may wait; further ones get 429"
    )
    max_body_bytes: int = setting(8 << 20, "largest request body in bytes")
    request_timeout_s: float = setting(
        0.0, "seconds a request may take; 0 for no limit; x-request-timeout may set less"
    )
    body_timeout_s: float = setting(30.0, "seconds a request's body may take to arrive")
    reader_timeout_s: float = setting_of(
        StreamTiming, "reader_s", "seconds a client may leave a stream unread before it is cut off"
    )
    drain_s: float = setting(30.0, "seconds that running requests may take after SIGTERM")
    memory_limit: int | None = setting(
        None,
        "bytes of memory near which the gateway sheds load; 0 for no limit. The default is the "
        "control group's limit, else the machine's memory",
    )
    max_connections: int | None = setting(
        None, "client connections at a time; by default as many as open files allow, at most 16384"
    )
    max_connections_per_client: int | None = setting(
        None, "connections of one address; by default half of --max-connections"
    )

    REQUESTS: ClassVar = Heading("Requests and streams")
    stream_interval_ms: float | None = setting(
        None,
        "milliseconds in which steps of a stream are sent together; 0 sends each immediately. By "
        "default steps are joined only while the event loop lags",
    )
    first_event_grace_s: float = setting_of(
        StreamTiming,
        "first_event_grace_s",
        "seconds the status line waits for the first token, so that errors keep their status",
    )
    keep_alive_s: float = setting_of(
        StreamTiming, "keep_alive_s", "seconds of silence in a stream before a comment is sent"
    )
    unknown_fields: str = setting(
        "ignore",
        "unknown request fields: ignored and named in a response header, or refused with 400",
        choices=("ignore", "refuse"),
    )
    history_media: str = setting(
        "placeholder",
        "images and files in earlier messages and tool results that the model cannot read: a "
        "placeholder, or a 400",
        choices=("placeholder", "refuse"),
    )
    workloads: tuple[str, ...] = setting((), "further workload names for x-eaglegate-workload")
    enable_tokenizer_info_endpoint: bool = setting(
        False, "serve /tokenizer_info: the tokenizer's configuration and the chat template"
    )

    IMAGES: ClassVar = Heading("Images")
    media_hosts: tuple[str, ...] = setting(
        (),
        "hosts from which images may be fetched over http and https, with a port if it is not the "
        "usual one; without any, clients send images as data: URLs",
        metavar="HOST",
    )
    max_images: int = setting_of(ImageLimits, "max_images", "maximum images of a request")
    max_image_bytes: int = setting_of(ImageLimits, "max_bytes", "maximum bytes of an image")
    max_image_pixels: int = setting_of(ImageLimits, "max_pixels", "maximum pixels of an image")

    STORE: ClassVar = Heading("Stored responses and conversations")
    responses_store: str = setting(
        "auto",
        "store of responses: a SQLAlchemy database URL, none, or auto: "
        "~/.local/state/eaglegate/responses.sqlite",
    )
    responses_retention_s: float = setting_of(Retention, "seconds", "seconds a response is kept")
    responses_most: int = setting_of(
        Retention, "most", "maximum stored responses; beyond it the oldest are deleted"
    )
    responses_bytes: int = setting_of(
        Retention, "bytes", "maximum bytes of all responses; beyond it the oldest are deleted"
    )
    responses_key_bytes: int = setting_of(
        Retention, "owner_bytes", "maximum bytes of the responses of one API key"
    )
    encryption_key: tuple[str, ...] = setting(
        (),
        "Fernet keys for encrypted reasoning: the first encrypts, all decrypt; "
        "better in the environment or a file than on a command line",
    )
    encryption_key_file: str | None = setting(
        None,
        "file of encryption keys, one per line; by default one is created next to the SQLite store",
    )

    BROWSERS: ClassVar = Heading("Browsers and proxies")
    allowed_hosts: tuple[str, ...] = setting_of(
        CrossOriginPolicy,
        "hosts",
        "further host names of this gateway, if no API key is required; *.NAME for subdomains",
    )
    allowed_origins: tuple[str, ...] = setting_of(
        CrossOriginPolicy,
        "origins",
        "origins whose pages and applications may use the API, such as https://app.example, or "
        "vscode-webview://* for a whole scheme; * for all",
    )
    allow_credentials: bool = setting_of(
        CrossOriginPolicy, "credentials", "CORS: pages of allowed origins may send credentials"
    )
    allowed_methods: tuple[str, ...] = setting_of(
        CrossOriginPolicy, "methods", "CORS: methods for allowed origins"
    )
    allowed_headers: tuple[str, ...] = setting_of(
        CrossOriginPolicy, "headers", "CORS: headers for allowed origins"
    )
    forwarded_allow_ips: tuple[str, ...] = setting(
        (), "addresses or networks of proxies whose X-Forwarded-For and -Proto are trusted"
    )

    TLS: ClassVar = Heading("TLS")
    ssl_certfile: str | None = setting_of(
        TlsSettings, "certfile", "TLS certificate; HTTPS with one, HTTP without"
    )
    ssl_keyfile: str | None = setting_of(
        TlsSettings, "keyfile", "TLS key, if it is not in the certificate's file"
    )
    ssl_keyfile_password: str | None = setting_of(
        TlsSettings, "keyfile_password", "password of the TLS key"
    )
    ssl_ca_certs: str | None = setting_of(
        TlsSettings,
        "ca_certs",
        "CA certificates for clients' certificates, which are then required",
    )
    ssl_ciphers: str | None = setting_of(
        TlsSettings,
        "ciphers",
        "ciphers of TLS 1.2 as OpenSSL names them; by default those of Python",
    )

    SUPERVISION: ClassVar = Heading("When the engine fails")
    engine_start_s: float = setting_of(
        SupervisionTimeouts,
        "start_s",
        "seconds after which a start of the engine is abandoned",
    )
    engine_hang_s: float = setting_of(
        SupervisionTimeouts,
        "hang_s",
        "seconds without a sign of life after which the engine is replaced",
    )
    engine_stall_s: float = setting_of(
        SupervisionTimeouts,
        "stall_s",
        "seconds without a step after which an engine with requests is replaced",
    )
    engine_wait_s: float = setting_of(
        SupervisionTimeouts,
        "wait_s",
        "seconds a request waits while the engine is replaced",
    )
    engine_stable_s: float = setting_of(
        SupervisionTimeouts,
        "stable_s",
        "seconds after which an engine resets the count of failures; a served token also resets it",
    )
    engine_failures: int = setting_of(
        SupervisionTimeouts,
        "max_failures",
        "engine failures in a row after which the gateway exits with status 1",
    )
    continuations: int = setting_of(
        SupervisionTimeouts,
        "continuations",
        "engine failures in a row that one request may survive without a new token",
    )

    LOGS: ClassVar = Heading("Logs and traces")
    log_level: str = setting(
        "info", "level of the log", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "text",
        "format of the log, including vLLM's and the engine's lines: text, or one JSON object "
        "per line",
        choices=("text", "json"),
    )
    otlp_endpoint: str | None = setting(
        None, "OTLP/HTTP endpoint for traces, such as http://localhost:4318; off by default"
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.stream_interval_ms is not None and not 0 <= self.stream_interval_ms <= 1000:
            raise ConfigError(
                f"--stream-interval-ms must be 0 to 1000; given {self.stream_interval_ms:g}"
            )
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"--otlp-endpoint must begin with http:// or https://; given {self.otlp_endpoint}"
            )
        self._check_media_hosts()
        if self.depth not in (None, "auto") and not str(self.depth).isdecimal():
            raise ConfigError(f"--depth must be a number or auto; given {self.depth}")
        is_remote = bool(self.upstream or self.upstream_file or self.upstream_dns)
        if self.depth == "auto" and is_remote:
            raise ConfigError(
                "--depth auto plans in the engine of this process; leave it out and start workers "
                "with --scheduler-cls eaglegate.engine.PlanningScheduler"
            )

    def _check_media_hosts(self) -> None:
        for text in self.media_hosts:
            try:
                parse_host(text)
            except ValueError as error:
                raise ConfigError(f"--media-hosts: {error}") from None

    def _check_numbers(self) -> None:
        for names, rule, condition in NUMBERS:
            for name in names:
                value = getattr(self, name)
                if value is not None and not condition(value):
                    raise ConfigError(f"{flag(name)} must be {rule}; given {value}")

    @property
    def fixed_depth(self) -> int | None:
        """Depth of requests that set none; None leaves it to the engine."""
        return None if self.depth in (None, "auto") else int(self.depth)


def read_settings(namespace: argparse.Namespace) -> Settings:
    """Read the settings. Raises ConfigError."""
    return read_into(Settings, namespace)


def describe_changes(settings: Settings) -> dict[str, str]:
    """Return the changed settings as flag -> value. Secrets are not shown."""
    standard = Settings()
    values = {item.name: getattr(settings, item.name) for item in fields(Settings)}
    return {
        flag(name): "(secret)" if name in SECRETS else redact(_format(value))
        for name, value in values.items()
        if value != getattr(standard, name) and (name, value) != ("depth", "auto")
    }


def _format(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
