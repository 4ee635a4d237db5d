"""Protection from web pages of other origins, which may do nothing unless an operator allows it.

A browser inside the operator's network sends requests for any page. A page cannot forge three parts
of such a request: ``Origin``, which accompanies everything except GET and HEAD; ``Sec-Fetch-Site``;
and ``Host``, the name that the browser connected to. If a page's own name resolves to this machine
(DNS rebinding), its origin equals ``Host``, so the name itself must be known. An address is always
accepted, since no name was resolved to reach it.

If a key is required, the key is the proof, and none of this is needed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import methodcaller
from urllib.parse import urlsplit

import orjson
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from eaglegate.server.errors import ConfigError, Forbidden, InvalidRequest, UnsupportedMediaType

ANY = "*"
LOCAL_NAMES = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})
"""Names that cannot be registered. The last two mean this machine inside its containers."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that a browser lets every page send. They change and cost nothing here."""
OWN_SITE = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` for the gateway's own page and for typed addresses."""
JSON = "application/json"
_DECODE = methodcaller("decode", "latin-1")

READABLE = (
    "x-request-id", "request-id", "retry-after", "server-timing", "x-eaglegate-ignored-fields",
    "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
    "x-ratelimit-limit-concurrency", "x-ratelimit-remaining-concurrency",
)  # fmt: skip
"""Response headers that pages of allowed origins may read."""
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+?)\.?)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class CrossOriginPolicy:
    """Accepted host names, allowed origins, and CORS settings as in ``vllm serve``."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    credentials: bool = False
    methods: tuple[str, ...] = (ANY,)
    headers: tuple[str, ...] = (ANY,)

    def for_machine(self, host: str) -> CrossOriginPolicy:
        """Return the policy with parsed lists, and with the listening and machine names as hosts.

        Raises ConfigError.
        """
        return replace(
            self,
            hosts=(*parse_names(self.hosts), host.lower(), socket.gethostname().lower()),
            origins=_check_origins(parse_names(self.origins)),
            methods=parse_names(self.methods),
            headers=parse_names(self.headers),
        )

    def check_host(self, host: str) -> None:
        """Raise Forbidden for a name that a stranger could have registered."""
        if not (_is_address(host) or self._is_known_name(host)):
            raise Forbidden(
                "Without API keys, the Host header must be an address or a name of this machine; "
                f"given '{host[:80]}'. Start the gateway with --allowed-hosts {host[:80]} "
                "(or EAGLEGATE_ALLOWED_HOSTS) to allow the name, or configure API keys.",
                code="host_not_allowed",
            )

    def check_origin(
        self, method: str, headers: RequestHeaders, allowed_origins: Iterable[str]
    ) -> None:
        """Raise Forbidden for a request from a page whose origin is not in ``allowed_origins``."""
        if method in SAFE_METHODS:
            return
        origins, site = headers.getlist("origin"), headers.get("sec-fetch-site")
        if site is None and not origins:
            return
        host = headers.get("host", "").lower()
        if site is None and host and all(_read_netloc(origin) == host for origin in origins):
            return
        if site in OWN_SITE or ANY in allowed_origins:
            return
        if origins and all(_is_allowed(origin, allowed_origins) for origin in origins):
            return
        raise _refuse_origin(origins[0] if len(origins) == 1 else "", site or "")

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap ``app`` with the CORS headers that let pages of allowed origins read its answers."""
        return CORSMiddleware(
            app,
            allow_origins=[origin for origin in self.origins if not _is_scheme(origin)],
            allow_origin_regex=_match_schemes(self.origins),
            allow_methods=self.methods,
            allow_headers=self.headers,
            allow_credentials=self.credentials,
            allow_private_network=True,
            expose_headers=READABLE,
        )

    def _is_known_name(self, host: str) -> bool:
        if host in LOCAL_NAMES or host.endswith(".localhost"):
            return True
        return any(_matches(host, name.lower()) for name in self.hosts)


class RequestHeaders(dict[str, str]):
    """Request headers by lower-case name. Of several with one name, the first counts."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        names, values = zip(*reversed(raw), strict=True) if raw else ((), ())
        super().__init__(zip(map(_DECODE, names), map(_DECODE, values), strict=True))
        self._raw = raw

    def getlist(self, name: str) -> list[str]:
        """Return all values of this name."""
        if name not in self:
            return []
        if len(self) == len(self._raw):
            return [self[name]]
        key = name.encode("latin-1")
        return [_DECODE(value) for header, value in self._raw if header == key]


def read_host(headers: RequestHeaders, http_version: str) -> str:
    """Return the request's only host name; empty if HTTP/1.0 gives none. Raises InvalidRequest."""
    hosts = headers.getlist("host")
    if not hosts and http_version == "1.0":
        return ""
    name = parse_host(hosts[0]) if len(hosts) == 1 else None
    if name is None:
        listing = ", ".join(f"'{value[:40]}'" for value in hosts[:3]) or "none"
        raise InvalidRequest(
            f"A request needs one Host header, a name or an address; given: {listing}.",
            code="invalid_host",
        )
    return name


def parse_host(host: str) -> str | None:
    """Return a Host header without its port; None if it is malformed."""
    match = HOST.fullmatch(host)
    return None if match is None else (match[1] or match[2]).lower()


def check_content_type(method: str, headers: RequestHeaders) -> None:
    """Raise UnsupportedMediaType for a body that is not declared as JSON.

    A program may omit the type. A browser must declare it: without permission, pages can only send
    the content types of forms, or none.
    """
    content_type = headers.get("content-type", "")
    if content_type == JSON or method in SAFE_METHODS or not _has_body(headers):
        return
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON or kind.endswith("+json"):
        return
    if kind == "" and "origin" not in headers and "sec-fetch-site" not in headers:
        return
    hint = ", which is what curl -d sends by itself" if kind.endswith("urlencoded") else ""
    raise UnsupportedMediaType(
        f"The body must be JSON; its content type is '{kind[:80]}'{hint}. Send the header "
        "'content-type: application/json'."
    )


def parse_names(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a list of names, also given as one JSON array as in ``vllm serve``. Raises
    ConfigError.
    """
    if not arguments or not arguments[0].startswith("["):
        return tuple(arguments)
    text = ",".join(arguments)  # lists from the environment are split at commas
    try:
        names = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"a list of names must be a JSON array; given {text}: {error}") from None
    return tuple(str(name) for name in names)


ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+")


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Raise ConfigError for a name that no browser sends as an origin."""
    for origin in origins:
        if not ORIGIN.fullmatch(origin):
            raise ConfigError(
                "--allowed-origins takes a scheme and a host without a path, such as "
                f"https://app.example, or *; given {origin}"
            )
    return origins


def _refuse_origin(origin: str, site: str) -> Forbidden:
    """Return the error for an origin. Browser extensions and desktop applications have origins,
    too, such as vscode-webview:// and app://.
    """
    argument = f" --allowed-origins {origin}" if SHOWN_ORIGIN.fullmatch(origin) else ""
    flag = f"Start it with{argument}" if argument else "List the origin in --allowed-origins"
    return Forbidden(
        "A web page, a browser extension or a desktop application of another origin "
        f"({origin[:80] or site}) may not use this gateway without an API key. {flag} (or "
        "EAGLEGATE_ALLOWED_ORIGINS) to allow it, or configure API keys.",
        code="origin_not_allowed",
    )


SHOWN_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.:_-]{1,80}")
"""Origins that the error message recommends. ``null`` is not among them, because every page can
have it.
"""
SCHEME = re.compile(r"(?!https?:)([a-z][a-z0-9+.-]*)://\*")
"""All origins of one scheme except http and https: applications choose arbitrary hosts."""


def _is_scheme(origin: str) -> bool:
    return SCHEME.fullmatch(origin) is not None


def _is_allowed(origin: str, entries: Iterable[str]) -> bool:
    return any(
        origin == entry or (_is_scheme(entry) and origin.startswith(entry[:-1]))
        for entry in entries
    )


def _match_schemes(origins: Iterable[str]) -> str | None:
    """Return a regular expression for the origins of whole schemes."""
    schemes = [re.escape(origin[:-1]) + ".*" for origin in origins if _is_scheme(origin)]
    return "|".join(schemes) or None


def _has_body(headers: RequestHeaders) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _read_netloc(origin: str) -> str:
    """Return an origin's host and port in the format of Host; empty for an opaque origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


@lru_cache(maxsize=1024)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _matches(host: str, name: str) -> bool:
    """Return True if the name matches: ``*.example.com`` is every name below example.com, ``*``
    every name.
    """
    return name in (ANY, host) or (name[:2] == "*." and host.endswith(name[1:]))
