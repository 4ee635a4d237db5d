"""Which modules are mutated, and the tests that should notice."""

from __future__ import annotations

TARGETS: dict[str, tuple[str, ...]] = {
    "server/access/admission.py": ("tests/server/test_admission.py", "tests/server/test_drain.py"),
    "server/access/keys.py": ("tests/server/test_keys.py", "tests/server/test_door.py"),
    "server/access/quota.py": ("tests/server/test_admission.py", "tests/server/test_keys.py"),
    "server/store/sql.py": ("tests/server/test_store.py", "tests/server/test_conversations.py"),
    "server/store/conversations.py": ("tests/server/test_conversations.py",),
    "server/apis/responses/background.py": ("tests/server/test_responses.py",),
    "server/generation/truncation.py": ("tests/server/test_truncation.py",),
    "server/generation/generate.py": (
        "tests/server/test_choices.py",
        "tests/server/test_chat.py",
        "tests/server/test_completions.py",
        "tests/server/test_chat_extras.py",
        "tests/server/test_admission.py",
    ),
    "engine/speculation/accounting.py": (
        "tests/engine/speculation/test_accounting.py",
        "tests/observability/test_account_scripted.py",
    ),
    "engine/supervision/continuation.py": ("tests/engine/supervision/test_continuation.py",),
    "engine/supervision/recovery.py": ("tests/engine/supervision",),
}
