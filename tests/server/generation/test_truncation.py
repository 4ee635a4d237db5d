"""Messages that are dropped from a conversation that does not fit, and those that stay."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglegate.server.access.caller import Caller
from eaglegate.server.generation.job import Conversation
from eaglegate.server.generation.prompt import drop_oldest, render_newest


def talk(*roles: str) -> Conversation:
    """One message a role; a digit behind it numbers it."""
    return Conversation(
        messages=tuple({"role": role.rstrip("0123456789"), "content": role} for role in roles)
    )


def left(conversation: Conversation) -> list[str]:
    return [str(message["content"]) for message in conversation.messages]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_stay(role):
    conversation = talk(role, "user1", "assistant1", "user2")
    assert left(drop_oldest(conversation, 2)) == [role, "user2"]


def test_a_tools_result_goes_with_its_call():
    conversation = talk("user1", "assistant1", "tool1", "tool2", "assistant2", "user2")
    assert left(drop_oldest(conversation, 1)) == left(conversation)[1:]
    for count in (2, 3, 4):
        assert left(drop_oldest(conversation, count)) == ["assistant2", "user2"]


@given(
    st.lists(st.sampled_from(["system", "developer", "user", "assistant", "tool"]), min_size=1),
    st.integers(0, 12),
)
def test_no_result_leads_and_the_last_message_stays(roles, count):
    conversation = talk(*(f"{role}{at}" for at, role in enumerate(roles)))
    spoken = [m for m in conversation.messages if m["role"] not in ("system", "developer")]
    count = min(count, max(0, len(spoken) - 1))
    kept = drop_oldest(conversation, count)
    rest = [m for m in kept.messages if m["role"] not in ("system", "developer")]
    dropped = len(conversation.messages) - len(kept.messages)
    if dropped and len(rest) > 1:
        assert rest[0]["role"] != "tool"
    assert rest[-1:] == spoken[-1:]
    assert dropped >= count


class Words:
    """Renders one token a message."""

    def render_chat(self, messages, tools, **options):
        return list(range(len(messages)))


@pytest.mark.parametrize(("room", "num"), [(9, 6), (6, 6), (5, 5), (3, 3), (2, 2), (1, 2)])
def test_as_much_as_fits_stays(room, num):
    conversation = talk("system", "user1", "assistant1", "user2", "assistant2", "user3")
    _, tokens = asyncio.run(render_newest(conversation, Words(), Caller().charge, room, room))
    assert len(tokens) == num
