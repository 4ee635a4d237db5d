"""TLS, as a client meets it: certificates on both sides, and what is not TLS at all."""

from __future__ import annotations

import signal
import socket
import ssl
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
import pytest

from eaglegate.server.cli.health import is_ready
from eaglegate.server.errors import ConfigError
from eaglegate.server.http.connection import TlsSettings, make_server_config
from tests.certificates import self_signed
from tests.server.cli.test_signals import BODY, scripted

pytestmark = pytest.mark.thorough


@pytest.fixture
def certificate(tmp_path):
    return self_signed(tmp_path / "server.pem")


def trusting(certificate: Path, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    if own is not None:
        context.load_cert_chain(own)
    return context


def test_a_stream_over_tls_and_a_clean_end(certificate):
    with scripted(0.2, 10, certificate) as served:
        assert served.url.startswith("https://127.0.0.1:")
        with httpx.Client(verify=trusting(certificate), base_url=served.url) as client:
            with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
                assert "data: [DONE]" in list(answer.iter_lines())
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                httpx.get(f"{served.url}/health")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0


@pytest.mark.parametrize("suites", ["ECDHE+AESGCM", "ECDHE+CHACHA20"])
def test_clients_of_tls_1_2_connect_by_default(certificate, suites):
    context = trusting(certificate)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(suites)
    with scripted(0.2, 10, certificate) as served:
        assert httpx.get(f"{served.url}/health", verify=context).status_code == 200


def test_ciphers_can_be_named(certificate):
    tls = TlsSettings(str(certificate), ciphers="ECDHE+CHACHA20")
    config = make_server_config(None, tls)
    config.load()
    names = {suite["name"] for suite in config.ssl.get_ciphers() if suite["protocol"] != "TLSv1.3"}
    assert names
    assert all("CHACHA20" in name for name in names)


def test_connections_without_tls_do_not_disturb_others(certificate):
    with scripted(0.2, 10, certificate) as served:
        where = urlsplit(served.url)
        address = (where.hostname, where.port)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{where.netloc}/health")
        for said in (b"", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 4096):
            with socket.create_connection(address) as stranger:
                stranger.sendall(said)
        assert httpx.get(f"{served.url}/health", verify=trusting(certificate)).status_code == 200


def test_clients_need_a_certificate_where_that_is_asked(certificate, tmp_path):
    friend, stranger = self_signed(tmp_path / "friend.pem"), self_signed(tmp_path / "stranger.pem")
    with scripted(0.2, 10, certificate, friend) as served:
        url = f"{served.url}/health"
        for own in (None, stranger):
            with pytest.raises(httpx.HTTPError):
                httpx.get(url, verify=trusting(certificate, own))
        assert httpx.get(url, verify=trusting(certificate, friend)).status_code == 200


@pytest.mark.parametrize("tls", ["none", "server", "both"])
def test_the_image_s_health_check_asks_as_the_port_speaks(certificate, tmp_path, monkeypatch, tls):
    if tls == "both":
        monkeypatch.setenv("EAGLEGATE_SSL_CA_CERTS", "ca.pem")
    friend = self_signed(tmp_path / "friend.pem")
    files = {"none": (), "server": (certificate,), "both": (certificate, friend)}[tls]
    with scripted(0.2, 10, *files) as served:
        port = urlsplit(served.url).port
        assert is_ready(port)
    assert not is_ready(port), "it has ended"


def test_a_health_check_fails_where_the_port_is_not_ready():
    class Loading(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(503)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Loading) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert not is_ready(server.server_port)
        finally:
            server.shutdown()


def test_invalid_tls_settings_are_named_before_the_start(certificate, tmp_path):
    other = self_signed(tmp_path / "other.pem")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("this is no certificate")
    for tls, words in (
        (TlsSettings("/nowhere.pem"), "/nowhere.pem"),
        (TlsSettings(str(nonsense)), "nonsense.pem"),
        (TlsSettings(str(certificate), str(other)), "KEY_VALUES_MISMATCH|key values mismatch"),
        (TlsSettings(str(certificate), ciphers="NONE-SUCH"), "cipher"),
        (TlsSettings(keyfile=str(other)), "would serve plain HTTP"),
        (TlsSettings(ca_certs=str(other)), "would serve plain HTTP"),
    ):
        with pytest.raises(ConfigError, match=words):
            tls.check()
    TlsSettings().check()
    TlsSettings(str(certificate)).check()
