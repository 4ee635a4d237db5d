"""The parsed command line, which a backend is made of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from eaglegate.server.errors import ConfigError
from eaglegate.server.feature_settings import FeatureSettings
from eaglegate.server.flags import Heading, setting
from eaglegate.server.settings import Settings

Arguments = Any
"""vLLM's AsyncEngineArgs, whose name is only used in engine/vllm_backend."""


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """Facts about the model that a gateway without vLLM needs, named as in ``vllm serve``."""

    MODEL: ClassVar = Heading("Model of the workers")
    model: str = setting("", "folder or hub name of the model the workers serve")
    tokenizer: str | None = setting(None, "folder or hub name of its tokenizer, if elsewhere")
    revision: str | None = setting(None, "branch, tag or commit on the hub")
    max_model_len: int | None = setting(None, "longest sequence; the workers may allow less")
    per_request_spec_decode_metrics: str = setting(
        "none",
        "speculation metrics in every answer",
        choices=("none", "summary", "detailed"),
    )


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line. ``argv`` is the original, for reading it again."""

    namespace: argparse.Namespace
    settings: Settings
    demo: bool
    """True if no model was named."""
    argv: list[str]
    backend: str
    """Class path of the backend: ``module:Class``."""
    features: Sequence[FeatureSettings] = ()
    """Settings of the features that are on."""
    model: ModelArguments | None = None
    """Model of a gateway without vLLM; None otherwise."""

    @property
    def remote(self) -> bool:
        return self.model is not None


def read_engine_arguments(
    namespace: argparse.Namespace,
    depth: str | None = None,
    features: Sequence[FeatureSettings] = (),
) -> Arguments:
    """Return vLLM's engine arguments, with those of ``features``; ``depth`` is as in ``Settings``.
    Raises ConfigError."""
    from eaglegate.engine.vllm_backend.arguments import make_engine_arguments

    def configure(choices: dict[str, Any]) -> dict[str, Any]:
        for feature in features:
            choices = feature.configure_engine(choices)
        return choices

    try:
        return make_engine_arguments(namespace, depth, configure)
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error
