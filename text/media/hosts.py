"""Hosts and addresses from which images may be fetched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urljoin, urlsplit

PORTS = {"http": 80, "https": 443}
HOST = re.compile(r"(?P<name>(?:[a-z0-9_-]+\.)*[a-z0-9_-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?")
PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"
PUBLIC_IPV6 = IPv6Network("2000::/3")
"""All public addresses. IPv4 addresses in IPv6, as of NAT64, are outside."""
NOT_PUBLIC = (
    ip_network("168.63.129.16/32"),  # Azure's metadata, which only its machines reach
    ip_network("192.0.0.0/24"),  # Oracle's metadata, and others
    ip_network("2001::/23"),  # Teredo, and others
    ip_network("2002::/16"),  # 6to4, with an IPv4 address inside
)


@dataclass(frozen=True, slots=True)
class MediaHost:
    """A host from which an operator allows images."""

    name: str
    port: int | None
    """None for the usual port of the URL's scheme."""

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class MediaUrl:
    """An http or https URL, split once, so that nothing else reads it in another way."""

    scheme: str
    host: str
    port: int
    path: str
    """Path and query."""

    def __repr__(self) -> str:
        """Return a description without path and query, which may hold a credential."""
        return f"MediaUrl({self.scheme}://{self.host}:{self.port})"

    def redirect(self, location: str) -> MediaUrl:
        """Return the URL of a redirect. Raises ValueError."""
        return parse_url(urljoin(f"{self.scheme}://{self.host}:{self.port}{self.path}", location))


def parse_host(text: str) -> MediaHost:
    """Parse a host of ``--media-hosts``. Raises ValueError."""
    match = HOST.fullmatch(text.lower())
    port = match and match["port"]
    if not match or (port and not 0 < int(port) < 65536):
        raise ValueError(
            f"a host is a name or an address, with a port if it is an unusual one, such as "
            f"images.example.com or images.example.com:8443; given '{text}'"
        )
    return MediaHost(match["name"], int(port) if port else None)


def parse_url(text: str) -> MediaUrl:
    """Parse an http or https URL. Raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in PORTS or "@" in parts.netloc or not parts.hostname:
        raise ValueError("the URL is not http or https with a host and without a user")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = PORTS[parts.scheme] if parts.port is None else parts.port
    path = quote(parts.path or "/", PATH_CHARACTERS)
    query = quote(parts.query, PATH_CHARACTERS + "?")
    return MediaUrl(parts.scheme, host, port, f"{path}?{query}" if query else path)


def is_allowed(url: MediaUrl, hosts: Sequence[MediaHost]) -> bool:
    return any(
        host.name == url.host and url.port == (host.port or PORTS[url.scheme]) for host in hosts
    )


def is_public(text: str) -> bool:
    """Return True if an IP address is of the public Internet, and no metadata service."""
    address = ip_address(text)
    if any(address in network for network in NOT_PUBLIC):
        return False
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    return address in PUBLIC_IPV6 and address.is_global
