"""The capture of a gateway: settings to files, and the requests to the capture."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from eaglegate.features.capture.capture import RequestCapture
from eaglegate.features.capture.files import CaptureFolder, is_open_to_others
from eaglegate.features.capture.limits import HASHES, CaptureLimits
from eaglegate.features.capture.metrics import CapturedRequests
from eaglegate.features.capture.redaction import SaltedHashes, load_salt
from eaglegate.features.capture.settings import CaptureSettings
from eaglegate.observability.captures.files import make_cipher
from eaglegate.observability.facts import AnswerAudited, RequestBegan, RequestEnded
from eaglegate.observability.middleware import take_body
from eaglegate.observability.telemetry import Telemetry
from eaglegate.server.apis.shared.encryption import read_keys
from eaglegate.server.cli.feature import ActiveFeature, Core
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import make_part


class CaptureFeature(ActiveFeature):
    """Captures a share of the sessions."""

    keeps_bodies = True

    def __init__(self, core: Core, settings: CaptureSettings) -> None:
        """Raises ConfigError."""
        self._capture = open_capture(settings, core.progress)
        self._capture.set_decode(core.backend.renderer.decode)
        CaptureSubscriber(self._capture, core.telemetry)
        core.telemetry.add_group(lambda scope: CapturedRequests(scope, self._capture.writer))

    async def aclose(self) -> None:
        await asyncio.to_thread(self._capture.close)  # writes what is left, for a few seconds


class CaptureSubscriber:
    """Gives requests and audits to ``capture`` as telemetry reports them."""

    def __init__(self, capture: RequestCapture, telemetry: Telemetry) -> None:
        self._capture, self._telemetry = capture, telemetry
        telemetry.facts.subscribe(RequestBegan, self._select)
        telemetry.facts.subscribe(RequestEnded, self._submit)
        telemetry.facts.subscribe(AnswerAudited, capture.audits.record)

    def _select(self, fact: RequestBegan) -> None:
        if (sent_body := take_body()) is None:
            return
        session = self._capture.select(fact.facts)
        fact.observation.capture(session, sent_body)
        if session is not None:
            self._capture.audits.expect(fact.facts, session)

    def _submit(self, fact: RequestEnded) -> None:
        observation = fact.observation
        if observation.session is None:
            return
        info = next(iter(self._telemetry.engines.values()), None)
        self._capture.submit(
            fact.record,
            observation.session,
            tuple(observation.sequences.values()),
            observation.sent,
            info.speculation if info else None,
        )


def open_capture(settings: CaptureSettings, progress: Callable[[str], None]) -> RequestCapture:
    """Open the folder. Raises ConfigError."""
    assert settings.capture is not None
    is_anonymous = settings.capture_mode == HASHES
    directory = Path(settings.capture).expanduser()
    keys = read_keys(Path(settings.capture_key_file)) if settings.capture_key_file else []
    limits = make_part(CaptureLimits, settings)
    was_open = directory.is_dir() and is_open_to_others(directory)
    try:
        folder = CaptureFolder(directory, limits)
        hashes = SaltedHashes(load_salt(directory))
    except OSError as error:
        raise ConfigError(f"--capture {directory}: {error}") from None
    if was_open:
        progress(f"note: --capture {directory} was open to other users; its mode is 0700 now")
    progress(
        f"note: {settings.capture_share:.0%} of sessions are captured in {directory}"
        + (", as hashes" if is_anonymous else "")
        + (", encrypted" if keys else "")
    )
    redactor = None if is_anonymous else settings.make_redactor()
    return RequestCapture(
        folder,
        settings.capture_share,
        hashes,
        redactor,
        make_cipher(keys),
        settings.capture_images,
    )
