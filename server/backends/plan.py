"""What a command line needs to start: parsers, a port, a depth that the draft has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eaglegate.server.errors import ConfigError
from eaglegate.server.settings import Settings, describe_changes


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """The gateway's part of the command line, as far as startup depends on it."""

    host: str
    port: int
    parsers: Mapping[str, str]
    """Names of the parsers by purpose."""
    unknown: Sequence[str] = ()
    """A sentence for each name without a parser."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Changed settings as flag -> value."""
    require_lossless: bool = False
    strict_advisories: bool = False
    depth: int | None = None
    """The number of ``--depth``."""
    reuse_port: bool = False


def plan_gateway(settings: Settings, source: Any) -> GatewayPlan:
    from eaglegate.text.parsing.registry import reasoning_format, tool_format

    reasoning = getattr(source, "reasoning_parser", None) or settings.reasoning_parser
    parsers: dict[str, str] = {}
    unknown: list[str] = []
    for purpose, name, resolve in (
        ("tool calls", settings.tool_call_parser, tool_format),
        ("reasoning", reasoning, reasoning_format),
    ):
        parsers[purpose] = name or "none"
        if not name:
            continue
        try:
            resolve(name)
        except ValueError as error:
            parsers[purpose] = f"{name} (unknown)"
            unknown.append(str(error))
    return GatewayPlan(
        settings.host,
        settings.port,
        parsers,
        unknown,
        describe_changes(settings),
        settings.require_lossless,
        settings.strict_advisories,
        settings.fixed_depth,
        settings.reuse_port,
    )


def find_excess_depth(depth: int | None, speculation: Mapping[str, Any] | None) -> Iterator[str]:
    """Say that ``--depth`` is above the draft's own depth, which no step can exceed."""
    max_depth = (speculation or {}).get("num_speculative_tokens")
    if depth is not None and isinstance(max_depth, int) and depth > max_depth:
        yield (
            f"--depth must be from 0 to {max_depth}, num_speculative_tokens of the draft, or auto; "
            f"given {depth}"
        )


def refuse_unknown_parsers(settings: Settings, source: Any) -> None:
    """Raise ConfigError for names without a parser."""
    if unknown := plan_gateway(settings, source).unknown:
        raise ConfigError("; ".join(unknown))
