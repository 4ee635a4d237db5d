"""Protection from web pages of other origins: they may do nothing unless an operator allows it.

A browser sends what any page asks for, from inside the operator's network. Three things about
such a request a page cannot forge: ``Origin``, which goes with everything that is not GET or HEAD;
``Sec-Fetch-Site``; and ``Host``, the name the browser connected to. A page whose own name is made
to resolve to this machine (DNS rebinding) has an origin equal to ``Host``, so the name itself has
to be a known one. An address is always one: no name was resolved to reach it.

Where a key is asked for, the key is the proof, and none of this is needed.
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
"""Names that cannot be registered; the last two are this machine's in its containers."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that a browser lets every page send. Nothing here changes or spends anything for them."""
OWN_SITE = frozenset({"same-origin", "none"})
"""``Sec-Fetch-Site`` of the gateway's own page, and of what a person has typed."""
JSON = "application/json"
_DECODE = methodcaller("decode", "latin-1")

READABLE = (
    "x-request-id", "retry-after", "server-timing", "x-eaglegate-ignored-fields",
    "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
    "x-ratelimit-limit-concurrency", "x-ratelimit-remaining-concurrency",
)  # fmt: skip
"""Response headers that pages of allowed origins may read."""
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+?)\.?)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class CrossOriginPolicy:
    """Names this gateway answers to, origins that may use it, and CORS as ``vllm serve`` has it."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    credentials: bool = False
    methods: tuple[str, ...] = (ANY,)
    headers: tuple[str, ...] = (ANY,)

    def for_machine(self, host: str) -> CrossOriginPolicy:
        """Lists are read by ``parse_names``; the name listened on and the machine's own are hosts.

        Raises ConfigError.
        """
        return replace(
            self,
            hosts=(*parse_names(self.hosts), host.lower(), socket.gethostname().lower()),
            origins=parse_names(self.origins),
            methods=parse_names(self.methods),
            headers=parse_names(self.headers),
        )

    def check_host(self, host: str) -> None:
        """Raises Forbidden for a name that a stranger could have registered."""
        if not (_is_address(host) or self._is_known_name(host)):
            raise Forbidden(
                "Without API keys this gateway answers to addresses and to names of this machine; "
                f"the Host header says '{host[:80]}'. Start it with --allowed-hosts {host[:80]} "
                "(or EAGLEGATE_ALLOWED_HOSTS) to allow the name, or configure API keys.",
                code="host_not_allowed",
            )

    def check_origin(self, method: str, headers: RequestHeaders, allowed: Iterable[str]) -> None:
        """Raises Forbidden for a request by a page of an origin that is not ``allowed``."""
        if method in SAFE_METHODS:
            return
        origins, site = headers.getlist("origin"), headers.get("sec-fetch-site")
        if site is None and not origins:
            return
        host = headers.get("host", "").lower()
        if site is None and host and all(_read_netloc(origin) == host for origin in origins):
            return
        if site in OWN_SITE or ANY in allowed:
            return
        if origins and all(_is_allowed(origin, allowed) for origin in origins):
            return
        raise _refuse_origin(origins[0] if len(origins) == 1 else "", site or "")

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """``app`` with the headers that let pages of the allowed origins read its answers."""
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
    """Headers by their names in lower case. Of several with one name the first counts."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        names, values = zip(*reversed(raw), strict=True) if raw else ((), ())
        super().__init__(zip(map(_DECODE, names), map(_DECODE, values), strict=True))
        self._raw = raw

    def getlist(self, name: str) -> list[str]:
        """All with this name."""
        if name not in self:
            return []
        if len(self) == len(self._raw):
            return [self[name]]
        key = name.encode("latin-1")
        return [_DECODE(value) for given, value in self._raw if given == key]


def read_host(headers: RequestHeaders, http_version: str) -> str:
    """The one name the request is for; empty where HTTP/1.0 gives none. Raises InvalidRequest."""
    given = headers.getlist("host")
    if not given and http_version == "1.0":
        return ""
    name = parse_host(given[0]) if len(given) == 1 else None
    if name is None:
        shown = ", ".join(f"'{value[:40]}'" for value in given[:3]) or "none"
        raise InvalidRequest(
            f"A request needs one Host header, a name or an address; given: {shown}.",
            code="invalid_host",
        )
    return name


def parse_host(host: str) -> str | None:
    """A Host header without its port; None when it is none."""
    found = HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()


def check_content_type(method: str, headers: RequestHeaders) -> None:
    """Raises UnsupportedMediaType for a body that does not claim to be JSON.

    A program may leave the type out; a browser has to name it, since what it sends on behalf of any
    page without asking is of the types that forms have, or of none.
    """
    given = headers.get("content-type", "")
    if given == JSON or method in SAFE_METHODS or not _has_body(headers):
        return
    kind = given.partition(";")[0].strip().lower()
    if kind == JSON or kind.endswith("+json"):
        return
    if kind == "" and "origin" not in headers and "sec-fetch-site" not in headers:
        return
    hint = ", which is what curl -d sends by itself" if kind.endswith("urlencoded") else ""
    raise UnsupportedMediaType(
        f"The body must be JSON; its content type is '{kind[:80]}'{hint}. Send the header "
        "'content-type: application/json'."
    )


def parse_names(given: Sequence[str]) -> tuple[str, ...]:
    """A list of names, or a JSON array of them in one argument, as ``vllm serve`` takes it."""
    if not given or not given[0].startswith("["):
        return tuple(given)
    joined = ",".join(given)  # the environment's lists are cut at commas
    try:
        names = orjson.loads(joined)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"a list of names must be a JSON array; given {joined}: {error}"
        ) from None
    return tuple(str(name) for name in names)


def _refuse_origin(origin: str, site: str) -> Forbidden:
    """Extensions and desktop applications have origins as pages do: vscode-webview://, app://."""
    named = f" --allowed-origins {origin}" if SHOWN_ORIGIN.fullmatch(origin) else ""
    flag = f"Start it with{named}" if named else "List the origin in --allowed-origins"
    return Forbidden(
        "A web page, a browser extension or a desktop application of another origin "
        f"({origin[:80] or site}) may not use this gateway without an API key. {flag} (or "
        "EAGLEGATE_ALLOWED_ORIGINS) to allow it, or configure API keys.",
        code="origin_not_allowed",
    )


SHOWN_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9.:_-]{1,80}")
"""``null`` is not one to recommend: every page can have that origin."""
SCHEME = re.compile(r"(?!https?:)([a-z][a-z0-9+.-]*)://\*")
"""Every origin of one scheme, but for the web's own: applications make up their hosts."""


def _is_scheme(allowed: str) -> bool:
    return SCHEME.fullmatch(allowed) is not None


def _is_allowed(origin: str, allowed: Iterable[str]) -> bool:
    return any(
        origin == one or (_is_scheme(one) and origin.startswith(one[:-1])) for one in allowed
    )


def _match_schemes(origins: Iterable[str]) -> str | None:
    """A regular expression of the origins of whole schemes."""
    schemes = [re.escape(origin[:-1]) + ".*" for origin in origins if _is_scheme(origin)]
    return "|".join(schemes) or None


def _has_body(headers: RequestHeaders) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _read_netloc(origin: str) -> str:
    """An origin's host and port, as Host has them; empty for an opaque one."""
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
    """``*.example.com`` is every name below example.com; ``*`` is every name."""
    return name in (ANY, host) or (name[:2] == "*." and host.endswith(name[1:]))
