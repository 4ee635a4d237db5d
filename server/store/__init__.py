"""Where responses are kept until somebody asks for them again."""

from __future__ import annotations

from server.store.base import ConversationStore, ResponseStore, Stored, StoredConversation

__all__ = ["ConversationStore", "ResponseStore", "Stored", "StoredConversation"]
