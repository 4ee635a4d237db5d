"""Settings of the capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eaglegate.features.capture.limits import FULL, HASHES, MODES, CaptureLimits
from eaglegate.server.errors import ConfigError
from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting, setting_of

if TYPE_CHECKING:
    from eaglegate.features.capture.redaction import Redactor

SMALLEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CaptureSettings(FeatureSettings):
    """Settings of the capture, which is off without ``capture``."""

    NAME: ClassVar = "capture"
    FEATURE: ClassVar = "eaglegate.features.capture.feature:CaptureFeature"
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
    capture_images: bool = setting(
        False, "capture the bytes of images; by default a digest replaces them"
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
        is_anonymous = self.capture_mode == HASHES
        if is_anonymous and (self.capture_redact or self.capture_drop):
            raise ConfigError(
                "--capture-mode hashes keeps no text, so there is nothing to redact or drop: "
                "leave out --capture-redact and --capture-drop"
            )
        if is_anonymous and self.capture_images:
            raise ConfigError("--capture-mode hashes keeps no images: leave out --capture-images")
        if self.capture_redact or self.capture_drop:
            self.make_redactor()

    def make_redactor(self) -> Redactor:
        """Create the redactor. Raises ConfigError."""
        from eaglegate.features.capture.redaction import Redactor

        try:
            return Redactor.of(self.capture_redact, self.capture_drop)
        except ValueError as error:
            raise ConfigError(f"--capture-redact and --capture-drop: {error}") from None

    @property
    def is_on(self) -> bool:
        return self.capture is not None
