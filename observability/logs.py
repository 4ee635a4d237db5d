"""The access log: JSON, one object per line. It never holds what was asked or answered."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from observability.middleware import QUIET, HttpExchange
from observability.observation import RequestRecord

ACCESS = "eaglegate.access"
MAX_PATH = 200


class AccessLog:
    """Writes one line per exchange; call it with each.

    It does without ``logging``, which would cost more than all other observing of a request.
    """

    def __init__(self, level: str = "info", stream: TextIO | None = None) -> None:
        self._quiet = level != "debug"
        self._off = level in ("warning", "error")
        self._stream = stream or sys.stderr

    def __call__(self, exchange: HttpExchange) -> None:
        if self._off or (self._quiet and exchange.path in QUIET):
            return
        line = {
            "time": datetime.now(UTC),
            "level": "info",
            "logger": ACCESS,
            "message": "request",
            **make_fields(exchange),
        }
        self._stream.write(orjson.dumps(line).decode() + "\n")
        self._stream.flush()


def make_fields(exchange: HttpExchange) -> dict[str, Any]:
    """What the access log says of one exchange."""
    out: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.path[:MAX_PATH],
        "client": exchange.client,
        "status": exchange.status,
        "duration_ms": _to_ms(exchange.ended - exchange.started),
        "client_gone": exchange.client_gone,
        **({"refused": exchange.refused} if exchange.refused else {}),
    }
    record = exchange.observation.record if exchange.observation else None
    return out if record is None else out | make_generation_fields(record)


def make_generation_fields(record: RequestRecord) -> dict[str, Any]:
    """What a generation was and how it went; null where a number does not exist."""
    facts, totals, slices = record.facts, record.totals, record.slices
    tpots = [choice.tpot for choice in record.choices if choice.tpot is not None]
    return {
        "id": facts.id,
        "api": facts.api,
        **slices.labels._asdict(),
        "context": slices.context,
        "template": facts.template,
        "stream": facts.stream,
        "choices": len(record.choices),
        "outcome": record.ending.value,
        "finish": [choice.finish for choice in record.choices],
        "prompt_tokens": facts.prompt_tokens,
        "completion_tokens": record.tokens,
        "queue_ms": _to_ms(record.queued),
        "ttft_ms": _to_ms(record.ttft),
        "tpot_ms": _to_ms(sum(tpots) / len(tpots) if tpots else None),
        "acceptance_length": _round(totals.acceptance_length),
        "drafted_tokens": totals.proposed,
        "accepted_tokens": totals.accepted,
        "fallback_ratio": _round(totals.fallback_ratio),
        "drafts": list(record.drafts),
        "tool_calls": [outcome.value for choice in record.choices for outcome in choice.tools],
    }


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
