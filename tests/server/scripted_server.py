"""The gateway on the scripted engine as a process of its own, for what needs signals.

Says ``ready URL`` when it is; every answer takes ``SECONDS`` seconds. With a certificate (and
its key, in one file) it serves TLS; with a second one clients need certificates that one signed.
"""

from __future__ import annotations

import asyncio
import sys

from eaglegate.engine.scripted import Pause
from eaglegate.engine.types import Step
from eaglegate.server.access.admission import Admission
from eaglegate.server.cli.listener import Drain, SignalHandlers, bind, format_url, serve
from eaglegate.server.errors import ConfigError
from eaglegate.server.http.connection import TlsSettings
from eaglegate.text.events import FinishReason
from tests.server.conftest import Lab


async def main(seconds: float, grace_s: float, tls: TlsSettings) -> int:
    tls.check()
    lab = Lab()
    word = Step(tuple(lab.renderer.encode("word", False)))
    end = Step(word.token_ids, finish=FinishReason.STOP)
    lab.engine.script = [word, *[Pause(seconds / 20), word] * 20, end]
    assert lab.gateway.pipeline is not None
    admission: Admission = lab.gateway.pipeline.admission
    reloads = 0

    async def reload() -> dict[str, int]:
        nonlocal reloads
        reloads += 1
        print(f"reloaded {reloads}", flush=True)
        if reloads == 2:
            raise ConfigError("broken")
        return {"reloads": reloads}

    async def started() -> None:
        print(f"ready {format_url(listener, tls)}", flush=True)
        await asyncio.Event().wait()

    listener = bind("127.0.0.1", 0, 60)
    drain = Drain(lab.gateway, admission, grace_s, lab.engine.aclose)
    lost = await serve(lab.app, [listener], started(), SignalHandlers(drain, reload), tls)
    print(f"lost {lost}", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    certificate, ca = (*sys.argv[3:], None, None)[:2]
    tls = TlsSettings(certificate, ca_certs=ca)
    sys.exit(asyncio.run(main(float(sys.argv[1]), float(sys.argv[2]), tls)))
