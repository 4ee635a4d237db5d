"""Hosts, URLs and addresses from which images may be fetched."""

from __future__ import annotations

import pytest

from eaglegate.text.media.hosts import is_allowed, is_public, parse_host, parse_url

HOSTS = tuple(map(parse_host, ("images.example", "other.example:8443", "[2606:4700::1]")))


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1",
        "127.255.255.254", "168.63.129.16", "169.254.0.1", "169.254.169.254", "172.16.0.1",
        "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.0.1", "198.18.0.1", "198.51.100.1",
        "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1",
        "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "fc00::1",
        "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1"])
def test_public_addresses(address) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url, path",
    [
        ("https://images.example", "/"),
        ("http://images.example/cat.png", "/cat.png"),
        ("HTTPS://Images.Example:443/cat.png#tail", "/cat.png"),
        ("http://images.example:80/a?b=c&d=%20e", "/a?b=c&d=%20e"),
        ("https://other.example:8443/a", "/a"),
        ("https://[2606:4700::1]/a", "/a"),
        ("https://images.example/Kätzchen 1.png", "/K%C3%A4tzchen%201.png"),
        ("https://images.example/a\r\nHost: evil.example", "/aHost:%20evil.example"),
    ],
)
def test_allowed_urls(url, path) -> None:
    parts = parse_url(url)
    assert is_allowed(parts, HOSTS)
    assert parts.path == path


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/images.example",
        "https://images.example.evil.example/",
        "https://evilimages.example/",
        "https://sub.images.example/",
        "https://images.example./",
        "https://images.example:8443/",
        "https://images.example:0/",
        "https://images.example:80/",
        "http://images.example:443/",
        "https://other.example/",
        "https://images.example:99999/",
        "https://images.example@evil.example/",
        "https://user:password@images.example/",
        "https://evil.example#@images.example/",
        "https://evil.example\\@images.example/",
        "https://images.example\\.evil.example/",
        "https://evil.example\\.images.example/",
        "https://images.example%00.evil.example/",
        "https://images\u3002example/",
        "https:images.example/",
        "https:///images.example/",
        "//images.example/a",
        "ftp://images.example/a",
        "file://images.example/etc/passwd",
        "gopher://images.example/",
        "https://[2606:4700::2]/",
        "https://[2606:4700::1/",
        "https://0x7f000001/",
        "http://2130706433/",
        "",
    ],
)
def test_other_urls(url) -> None:
    try:
        parts = parse_url(url)
    except ValueError:
        return
    assert not is_allowed(parts, HOSTS)


@pytest.mark.parametrize(
    "text",
    ["", "https://images.example", "*.example", "images.example/", "images.example:", "a b",
     "images.example:0", "images.example:65536", "user@images.example", "2606:4700::1"],
)  # fmt: skip
def test_hosts_that_are_no_hosts(text) -> None:
    with pytest.raises(ValueError, match="a host is a name or an address"):
        parse_host(text)


def test_no_description_shows_a_path() -> None:
    assert "secret" not in repr(parse_url("https://images.example/secret?token=secret"))
