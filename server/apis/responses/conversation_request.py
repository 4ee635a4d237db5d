"""/v1/conversations: what a client may send."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from server.apis.chat.request import Metadata
from server.apis.responses.request import InputItem
from server.apis.shared.request import Many, RequestModel

MAX_ITEMS = 20
"""At a time, as OpenAI has it."""

ItemsField = Annotated[Many[InputItem], Field(max_length=MAX_ITEMS)]


class ConversationRequest(RequestModel):
    items: ItemsField | None = None
    metadata: Metadata | None = None


class ConversationUpdate(RequestModel):
    metadata: Metadata


class ConversationItems(RequestModel):
    items: Annotated[ItemsField, Field(min_length=1)]
