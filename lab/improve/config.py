"""Configuration file of the improvement loop (docs/improve.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eaglegate.engine.bounded_yaml import InvalidYaml, read_yaml

Share = Annotated[float, Field(gt=0, lt=1)]
DEMO_TARGET = Path(__file__).parents[2] / "engine" / "demo" / "target"


class ConfigInvalid(ValueError):
    """Unusable configuration file. The message names the field."""


class _Section(BaseModel):
    """Section in which unknown fields are errors, so that no misspelled setting is ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WindowConfig(_Section):
    """Amount of traffic for a candidate, and the share of it that judges."""

    answers: Annotated[int, Field(ge=1)] = 500
    """Number of new answers with token ids before a draft is tuned."""
    sessions: Annotated[int, Field(ge=5)] = 50
    """Number of new sessions before a draft is tuned."""
    judge_share: Share = 0.3
    """Share of sessions that are never trained on and judge candidates."""
    history: Annotated[int, Field(ge=0)] = 4
    """Number of earlier windows that are also used for training and judging."""
    pause_s: Annotated[float, Field(ge=0)] = 0.0
    """Least time between the end of one candidate and the next, in seconds."""


class TuneConfig(_Section):
    """Settings of ``eaglegate-train-draft``."""

    steps: Annotated[int, Field(ge=1)] = 200
    keep_share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    threads: Annotated[int, Field(ge=1)] = 1
    nice: Annotated[int, Field(ge=0, le=19)] = 10
    arguments: tuple[str, ...] = ()
    """Additional arguments, such as ``--batch-tokens 2048``."""


class GateConfig(_Section):
    """Evidence that a candidate needs on captured traffic before it meets live traffic."""

    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("all",)
    """Slices of the comparison that must improve, such as ``all`` or ``workload tools``."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.03
    """Tolerated loss of tokens per step in any other slice."""
    depth: Annotated[int, Field(ge=1)] = 3
    """Depth that is served."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Largest number of answers that are compared."""
    threads: Annotated[int, Field(ge=1)] = 1


class ImproveConfig(_Section):
    """Configuration of the loop. Paths are relative to the file."""

    state: Path
    """Folder of the ledger, the candidates and the stop file."""
    capture: Path
    """The capture folder of the gateway."""
    serve: str | None = None
    """Operator address of the gateway."""
    target: Path = DEMO_TARGET
    reference: Path | None = None
    """Capture of traffic that must not be forgotten. It is used for training and judging."""
    keep: Path | None = None
    """Exchanges that the draft was trained on, replayed in training: in the format of
    ``eaglegate-train-draft``, or a capture.
    """
    key_file: Path | None = None
    """Fernet keys of encrypted captures. Windows are then encrypted as well."""
    window: WindowConfig = WindowConfig()
    tune: TuneConfig = TuneConfig()
    gate: GateConfig = GateConfig()
    canary: dict[str, float] = Field(default_factory=dict)
    """Fields of ``POST /admin/canary``: ``slot_s``, ``max_s``, ``min_sessions``, ..."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """Number of failures of a stage before the candidate is given up."""
    poll_s: Annotated[float, Field(gt=0)] = 5.0


def read_config(path: Path) -> ImproveConfig:
    """Read the configuration file. Raises ConfigInvalid."""
    try:
        config = ImproveConfig.model_validate(read_yaml(path))
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "the file"
        raise ConfigInvalid(f"{path}: {field}: {problem['msg']}") from None
    except (OSError, InvalidYaml) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}") from None
    return _resolve(config, path.resolve().parent)


def _resolve(config: ImproveConfig, base: Path) -> ImproveConfig:
    names = ("state", "capture", "target", "reference", "keep", "key_file")
    settings = {name: getattr(config, name) for name in names}
    paths = {name: base / path.expanduser() for name, path in settings.items() if path is not None}
    return config.model_copy(update=paths)
