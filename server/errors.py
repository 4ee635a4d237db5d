"""Errors that clients receive. ``from_engine`` maps engine errors to them.

GatewayError              500  server_error
 +-- InvalidRequest       400  invalid_request_error
 |    +-- BodyTooLarge    413
 |    +-- NotFound        404
 |    +-- MethodNotAllowed 405
 |    +-- Conflict         409
 |    +-- RequestTimeout   408
 |    +-- UnsupportedMediaType 415
 |    |    +-- UnsupportedEncoding 415
 |    +-- UpgradeRequired  426
 |    +-- HeadersTooLarge  431
 +-- Unauthenticated      401  authentication_error
 +-- Forbidden            403  permission_error
 +-- TooManyRequests      429  rate_limit_error
 +-- Unavailable          503  service_unavailable
 |    +-- StoreFailed     503
 +-- DeadlineExceeded     504  timeout_error
 +-- ReaderTooSlow        never sent, because the client does not read

A message states the rule, the given value and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from starlette.types import Scope

from eaglegate.engine.errors import (
    EngineDead,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    RequestQuarantined,
    RequestRejected,
)

ANTHROPIC = b"anthropic-version"
"""Header of Anthropic's clients."""


class GatewayError(Exception):
    """An error response. ``str(error)`` is the message that the client sees."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the error. ``details`` are machine-readable facts from which Anthropic's clients
        recover.
        """
        super().__init__(message)
        self.param = param
        self.code = code or self.code
        self.retry_after_s = retry_after_s
        self.details = details

    def headers(self) -> dict[str, str]:
        """Return the response headers of the error, such as Retry-After in whole seconds."""
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, ceil(self.retry_after_s)))}


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class NotFound(InvalidRequest):
    status = 404
    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"
    allowed = ""
    """Value of the Allow header."""

    def headers(self) -> dict[str, str]:
        return {"allow": self.allowed}


class Conflict(InvalidRequest):
    status = 409
    code = "conflict"


class RequestTimeout(InvalidRequest):
    status = 408
    code = "request_timeout"


class UnsupportedMediaType(InvalidRequest):
    status = 415
    code = "unsupported_media_type"


class UnsupportedEncoding(UnsupportedMediaType):
    code = "unsupported_content_encoding"

    def headers(self) -> dict[str, str]:
        return {"accept-encoding": "identity"}


class UpgradeRequired(InvalidRequest):
    """Answer to a websocket's handshake, after which Codex goes on over HTTP at once."""

    status = 426
    code = "websocket_not_supported"

    def headers(self) -> dict[str, str]:
        return {"upgrade": "HTTP/1.1"}


class HeadersTooLarge(InvalidRequest):
    status = 431
    code = "headers_too_large"


class Unauthenticated(GatewayError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    challenge = "Bearer"
    """Authentication scheme in the WWW-Authenticate header."""

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": self.challenge}


class Forbidden(GatewayError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class TooManyRequests(GatewayError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Unavailable(GatewayError):
    status = 503
    type = "service_unavailable"
    code = "unavailable"


class StoreFailed(Unavailable):
    """The response store is unreachable. The cause is in the log."""

    code = "store_failed"


class DeadlineExceeded(GatewayError):
    status = 504
    type = "timeout_error"
    code = "deadline_exceeded"


class ReaderTooSlow(GatewayError):
    code = "reader_too_slow"


def openai_body(error: GatewayError) -> dict[str, Any]:
    """Return the error in OpenAI's format."""
    return {
        "error": {
            "message": str(error),
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_body(error: GatewayError) -> dict[str, Any]:
    """Return the error in Anthropic's format."""
    kind = _ANTHROPIC_TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    details = {} if error.details is None else {"details": dict(error.details)}
    return {"type": "error", "error": {"type": kind, "message": str(error), **details}}


def speaks_anthropic(scope: Scope) -> bool:
    """Return True for a request to Anthropic's API, or from one of its clients."""
    return scope["path"].startswith("/v1/messages") or any(
        name == ANTHROPIC for name, _ in scope["headers"]
    )


def error_body(scope: Scope, error: GatewayError) -> dict[str, Any]:
    """Return the error in the format that the client of a request expects."""
    return anthropic_body(error) if speaks_anthropic(scope) else openai_body(error)


class ConfigError(Exception):
    """A setting cannot be used. The message names the flag, the value and the rule."""


PROMPT_PARAM = {"completions": "prompt", "responses": "input"}
"""Field that contains the prompt, by API; 'messages' for all others."""


def context_overflow(
    api: str,
    num_prompt: int,
    max_tokens: int,
    max_model_len: int,
    exact: bool = True,
    num_image_tokens: int = 0,
) -> InvalidRequest:
    """Make the error for a prompt that does not fit, with the message of the request's API.

    ``max_tokens`` output tokens are mentioned only if the prompt itself fits. ``num_prompt`` is a
    lower bound unless ``exact``. ``num_image_tokens`` of them are those of images.
    """
    param = PROMPT_PARAM.get(api, "messages")
    write = _anthropic_message if api == "messages" else _openai_message
    counts = max_tokens if num_prompt <= max_model_len else 0
    prompt_size = str(num_prompt) if exact else f"at least {num_prompt}"
    message = write(param, num_prompt, prompt_size, counts, max_model_len)
    if num_image_tokens:
        message += f" Images have {num_image_tokens} of these tokens."
    return InvalidRequest(message, param=param, code="context_length_exceeded")


def _openai_message(
    param: str, num_prompt: int, prompt_size: str, max_tokens: int, max_model_len: int
) -> str:
    prefix = f"This model's maximum context length is {max_model_len} tokens. However, "
    if not max_tokens:
        return prefix + (
            f"your {param} resulted in {prompt_size} tokens. Please reduce the length of the "
            f"{param}."
        )
    return prefix + (
        f"you requested {num_prompt + max_tokens} tokens ({num_prompt} in the {param}, "
        f"{max_tokens} in the completion). Please reduce the length of the {param} or completion."
    )


def _anthropic_message(
    _: str, num_prompt: int, prompt_size: str, max_tokens: int, max_model_len: int
) -> str:
    if not max_tokens:
        return f"prompt is too long: {prompt_size} tokens > {max_model_len} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {num_prompt} + {max_tokens} > "
        f"{max_model_len}, decrease input length or `max_tokens` and try again"
    )


def from_engine(error: EngineError) -> GatewayError:
    """Map an engine error to a GatewayError by its class or nearest base class."""
    for kind in type(error).__mro__:
        if kind in _ENGINE_ERRORS:
            gateway_error = _ENGINE_ERRORS[kind](error)
            gateway_error.__cause__ = error
            return gateway_error
    raise TypeError(f"not an engine error: {type(error).__name__}")


def _from_overload(error: EngineError) -> GatewayError:
    delay_s = getattr(error, "retry_after_s", None)
    return TooManyRequests(str(error), code="engine_overloaded", retry_after_s=delay_s or 1)


def _from_failure(error: EngineError) -> GatewayError:
    return GatewayError(str(error), code="generation_failed")


_ENGINE_ERRORS: Mapping[type, Callable[[Any], GatewayError]] = {
    RequestRejected: lambda error: InvalidRequest(str(error), param=error.param),
    EngineOverloaded: _from_overload,
    EngineFailed: _from_failure,
    RequestQuarantined: lambda error: GatewayError(str(error), code="request_quarantined"),
    EngineDead: lambda _: Unavailable(
        "The engine stopped while running this request; try again.",
        code="engine_dead",
        retry_after_s=5,
    ),
    EngineError: _from_failure,
}
