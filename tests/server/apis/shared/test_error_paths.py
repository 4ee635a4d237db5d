"""The error about a wrong value names its field, through unions and nested objects."""

from __future__ import annotations

from typing import Any

import pytest

from eaglegate.server.access.notices import Notices
from eaglegate.server.apis.chat.request import ChatRequest
from eaglegate.server.apis.completions.to_job import CompletionRequest
from eaglegate.server.apis.messages.request import MessagesRequest
from eaglegate.server.apis.responses.request import ResponsesRequest
from eaglegate.server.apis.shared.fields import RequestModel
from eaglegate.server.apis.shared.request import validate
from eaglegate.server.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "x"}]
BODIES: dict[type[RequestModel], dict[str, Any]] = {
    ChatRequest: {"messages": MESSAGES},
    CompletionRequest: {"prompt": "x"},
    MessagesRequest: {"messages": MESSAGES, "max_tokens": 5},
    ResponsesRequest: {"input": "x"},
}
WRONG: tuple[Any, ...] = (
    -7.5, "zz", [5], [[{}]], {"zz": 1}, {"a": {"b": [1]}}, {"type": "zz"}, [{"type": "zz"}],
    {"type": "json_schema"}, {"format": {"type": "json_schema"}}, {"type": "function"},
    [{"type": "function"}], [{"type": "custom", "custom": {"format": {"type": "grammar"}}}],
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "name"),
    [(model, item.alias or name) for model in BODIES for name, item in model.model_fields.items()],
    ids=lambda given: given if isinstance(given, str) else given.__name__,
)
def test_a_wrong_value_is_named_by_its_field(model: type[RequestModel], name: str) -> None:
    for value in WRONG:
        try:
            validate({**BODIES[model], name: value}, model, Notices())
        except InvalidRequest as refused:
            assert refused.param is not None
            assert refused.param.partition("[")[0].partition(".")[0] == name
            assert refused.param in str(refused)
