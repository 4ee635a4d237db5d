"""What a request may give the chat template: variables of its own, never a name of the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.rendering.messages import GLOBALS, RESERVED
from server.apis.shared.served import Served
from server.errors import InvalidRequest

PARAM = "chat_template_kwargs"
MAX_TEMPLATE_CHARS = 256 << 10


def template_kwargs(
    served: Served, asked: Mapping[str, Any] | None, **meant: Any
) -> dict[str, Any]:
    """The operator's, what other fields mean (``meant``), the request's own: the last one counts.

    A variable that the template does not read is dropped by the renderer. Raises InvalidRequest.
    """
    given = {name: value for name, value in (asked or {}).items() if name != "chat_template"}
    for name in given:
        if name in RESERVED or name in GLOBALS:
            raise InvalidRequest(
                f"'{PARAM}.{name}' is not a variable of a chat template: it belongs to the "
                "gateway or the tokenizer. Leave it out.",
                param=f"{PARAM}.{name}",
            )
    return {**served.template_kwargs, **meant, **given}


def own_template(
    served: Served, asked: Mapping[str, Any] | None, named: str | None = None
) -> str | None:
    """The request's own template, where the operator trusts those. Raises InvalidRequest.

    ``named`` is that of a field of its own, which comes first.
    """
    param = f"{PARAM}.chat_template" if named is None else "chat_template"
    given = (asked or {}).get("chat_template") if named is None else named
    if given is None:
        return None
    if not served.trusts_templates:
        raise InvalidRequest(
            f"'{param}' is not taken: templates are the operator's (--chat-template), unless the "
            "gateway runs with --trust-request-chat-template.",
            param=param,
            code="unsupported_parameter",
        )
    if not isinstance(given, str) or len(given) > MAX_TEMPLATE_CHARS:
        raise InvalidRequest(
            f"'{param}' must be a string of at most {MAX_TEMPLATE_CHARS} characters.", param=param
        )
    return given
