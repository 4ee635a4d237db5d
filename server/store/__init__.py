"""Where responses are kept until somebody asks for them again."""

from __future__ import annotations

from server.store.base import ConversationStore, Limits, ResponseStore, Stored, StoredConversation

__all__ = ["ConversationStore", "Limits", "ResponseStore", "Stored", "StoredConversation"]
