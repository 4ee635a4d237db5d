"""Health check of the container images: exits with 0 if this container's gateway is ready.

    python3 -m eaglegate.server.cli.health

Queries ``/ready`` on ``EAGLEGATE_PORT``, over TLS if that port uses it. The certificate is not
checked, since it names the gateway's public address. If clients need certificates
(``EAGLEGATE_SSL_CA_CERTS``), a port that uses TLS and rejects this client counts as ready, since
nothing more can be found out.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from http.client import HTTPException, RemoteDisconnected

TIMEOUT_S = 2.0


def main() -> int:
    return 0 if is_ready(int(os.environ.get("EAGLEGATE_PORT", "8000"))) else 1


def is_ready(port: int) -> bool:
    address = f"127.0.0.1:{port}/ready"
    is_plain = "EAGLEGATE_SSL_CERTFILE" not in os.environ
    schemes = ("http", "https") if is_plain else ("https",)
    return any(_answers(f"{scheme}://{address}") for scheme in schemes)


def _answers(url: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as answer:
            return bool(answer.status == 200)
    except RemoteDisconnected:
        return url.startswith("https:") and "EAGLEGATE_SSL_CA_CERTS" in os.environ
    except (OSError, HTTPException):
        return False


if __name__ == "__main__":
    sys.exit(main())
