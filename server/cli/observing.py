"""Optional observers of the traffic: captures (docs/capture.md), audits, the doctor and the
improvement loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from eaglegate.engine.base import ResilientEngine, ScoresAnswers
from eaglegate.features.capture.limits import FULL, HASHES, MODES, CaptureLimits
from eaglegate.server.errors import ConfigError
from eaglegate.server.flags import Heading, make_part, read_into, setting, setting_of
from eaglegate.server.settings import Settings

if TYPE_CHECKING:
    from eaglegate.engine.speculation.swap import DraftManager
    from eaglegate.features.audit.auditor import Auditor
    from eaglegate.features.audit.records import EvidenceWriter
    from eaglegate.features.capture.capture import RequestCapture
    from eaglegate.features.capture.redaction import Redactor
    from eaglegate.features.doctor.cures import Reload
    from eaglegate.features.doctor.doctor import Doctor, Mode

SMALLEST_BYTES = 1 << 20
DOCTOR_OFF = "off"


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Settings of the capture, which is off without ``capture``."""

    CAPTURE: ClassVar = Heading("Capture of traffic")
    capture: str | None = setting(
        None, "folder for captured requests, including prompts and answers", metavar="DIR"
    )
    capture_share: float = setting(
        0.05, "share of sessions to capture, from 0 to 1; all requests of a session, or none"
    )
    capture_mode: str = setting(
        FULL, "capture everything, or lengths and salted hashes without any text", choices=MODES
    )
    capture_bytes: int = setting_of(
        CaptureLimits,
        "max_bytes",
        "maximum bytes of all capture files; beyond it the oldest are deleted",
    )
    capture_age_s: float = setting_of(CaptureLimits, "max_age_s", "seconds a capture file is kept")
    capture_key_file: str | None = setting(
        None, "a file of Fernet keys that encrypt the capture: the first encrypts, all decrypt"
    )
    capture_redact: tuple[str, ...] = setting(
        (),
        "regular expressions (RE2) whose matches are replaced before a request is captured",
    )
    capture_drop: tuple[str, ...] = setting(
        (), "fields of request bodies that are not captured, such as user and metadata"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.capture_share <= 1:
            raise ConfigError(f"--capture-share must be from 0 to 1; given {self.capture_share}")
        if self.capture_bytes < SMALLEST_BYTES:
            raise ConfigError(
                f"--capture-bytes must be at least {SMALLEST_BYTES}; given {self.capture_bytes}"
            )
        if self.capture_age_s <= 0:
            raise ConfigError(f"--capture-age-s must be above 0; given {self.capture_age_s}")
        anonymous = self.capture_mode == HASHES
        if anonymous and (self.capture_redact or self.capture_drop):
            raise ConfigError(
                "--capture-mode hashes keeps no text, so there is nothing to redact or drop: "
                "leave out --capture-redact and --capture-drop"
            )
        if self.capture_redact or self.capture_drop:
            self.make_redactor()

    def make_redactor(self) -> Redactor:
        """Create the redactor. Raises ConfigError."""
        from eaglegate.features.capture.redaction import Redactor

        try:
            return Redactor.of(self.capture_redact, self.capture_drop)
        except ValueError as error:
            raise ConfigError(f"--capture-redact and --capture-drop: {error}") from None


def open_capture(
    namespace: argparse.Namespace, progress: Callable[[str], None]
) -> RequestCapture | None:
    """Open the capture, if configured. Raises ConfigError."""
    settings = read_into(CaptureSettings, namespace)
    if settings.capture is None:
        return None
    # Imported only by gateways that capture.
    from eaglegate.features.capture.capture import RequestCapture
    from eaglegate.features.capture.files import CaptureFolder, is_open_to_others, make_cipher
    from eaglegate.features.capture.redaction import SaltedHashes, load_salt
    from eaglegate.server.apis.responses.encryption import read_keys

    anonymous = settings.capture_mode == HASHES
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
        + (", as hashes" if anonymous else "")
        + (", encrypted" if keys else "")
    )
    kept = None if anonymous else settings.make_redactor()
    return RequestCapture(folder, settings.capture_share, hashes, kept, make_cipher(keys))


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Settings of the audits, which are off with a share of 0."""

    AUDIT: ClassVar = Heading("Audit of answers")
    audit_share: float = setting(
        0.0,
        "share of finished answers, from 0 to 1, that the target scores again without the draft; a "
        "violation turns off speculation for its workload",
    )
    audit_evidence: str | None = setting(
        None, "folder for files that can replay a violation, including token ids", metavar="DIR"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.audit_share <= 1:
            raise ConfigError(f"--audit-share must be from 0 to 1; given {self.audit_share}")
        if self.audit_evidence and not self.audit_share:
            raise ConfigError("--audit-evidence needs an --audit-share above 0")


def open_audit(
    namespace: argparse.Namespace,
    model: str,
    engine: ResilientEngine,
    drafts: DraftManager | None,
    make: Callable[[float, EvidenceWriter], Auditor],
) -> Auditor | None:
    """Create the auditor, if configured. Raises ConfigError.

    ``make`` takes the share and a writer of evidence.
    """
    settings = read_into(AuditSettings, namespace)
    if not settings.audit_share:
        return None
    if not isinstance(engine, ScoresAnswers):
        raise ConfigError("--audit-share needs the engine in this process; workers have no audits")
    # Imported only by gateways that audit.
    from eaglegate.features.audit.files import EvidenceFolder
    from eaglegate.features.audit.records import write_nothing

    write: EvidenceWriter = write_nothing
    if settings.audit_evidence is not None:
        folder = Path(settings.audit_evidence).expanduser()
        try:
            write = EvidenceFolder(folder, model)
        except OSError as error:
            raise ConfigError(f"--audit-evidence {folder}: {error}") from None
    auditor = make(settings.audit_share, write)
    if drafts is not None:
        drafts.follow(auditor.change_draft)
    return auditor


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """Settings of the doctor, which is off by default."""

    DOCTOR: ClassVar = Heading("Acceptance doctor")
    doctor: str = setting(
        DOCTOR_OFF,
        "diagnose drops in acceptance (watch), and also drop cached blocks, reload the draft or "
        "restart the engine if that helps (cure)",
        choices=(DOCTOR_OFF, "watch", "cure"),
    )


def is_doctor_on(namespace: argparse.Namespace) -> bool:
    return read_into(DoctorSettings, namespace).doctor != DOCTOR_OFF


def open_doctor(
    namespace: argparse.Namespace,
    engine: ResilientEngine,
    drafts: DraftManager | None,
    make: Callable[[Mode, Reload | None], Doctor],
) -> Doctor | None:
    """Create the doctor, if configured. Raises ConfigError.

    ``make`` takes the mode and a function that reloads the draft's weights.
    """
    if not is_doctor_on(namespace):
        return None
    # Imported only by gateways with a doctor.
    from eaglegate.features.doctor.cures import Remedies
    from eaglegate.features.doctor.doctor import Mode

    if not isinstance(engine, Remedies):
        raise ConfigError("--doctor needs the engine in this process; workers have none")
    mode = Mode(read_into(DoctorSettings, namespace).doctor)
    doctor = make(mode, None if drafts is None else drafts.reload)
    if drafts is not None:
        drafts.follow(doctor.change_draft)
    return doctor


class BackgroundProcess(Protocol):
    """A process that runs alongside the gateway until it is cancelled."""

    async def run(self, url: str) -> None: ...


def open_improve(settings: Settings, has_draft: bool) -> BackgroundProcess | None:
    """Create the improvement loop, if configured. Raises ConfigError."""
    if settings.improve is None:
        return None
    if not has_draft:
        raise ConfigError("--improve needs a draft in this process; start it on a worker")
    path = Path(settings.improve).expanduser()
    # By name, because the gateway imports the lab only when an operator requests it.
    lab = import_module("eaglegate.lab.improve.process")
    try:
        process: BackgroundProcess = lab.open_process(path, settings.admin_api_key)
    except ValueError as error:
        raise ConfigError(f"--improve: {error}") from None
    return process
