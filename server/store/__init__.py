"""Where responses are kept until somebody asks for them again."""

from __future__ import annotations

from server.store.base import (
    ConversationStore,
    ResponseStore,
    Stored,
    StoredConversation,
    StoreLimits,
)

__all__ = ["ConversationStore", "ResponseStore", "StoreLimits", "Stored", "StoredConversation"]
