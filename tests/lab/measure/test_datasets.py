"""Every layout of a data set, and what is refused."""

from __future__ import annotations

import json

import pytest

from eaglegate.lab.measure.datasets import (
    COMPLETIONS,
    DataError,
    list_own_sets,
    load_sessions,
)


def load(tmp_path, *rows, name="data.jsonl", **options):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return load_sessions(str(path), **options)


def contents(session):
    return [[message["content"] for message in turn.messages] for turn in session.turns]


def test_all_turns_of_a_speed_bench_row_are_sent(tmp_path):
    row = {"question_id": "q1", "category": "coding", "turns": ["first", "second"]}
    (session,) = load(tmp_path, row)
    assert (session.id, session.category) == ("q1", "coding")
    assert contents(session) == [["first"], ["second"]]


def test_a_row_that_was_not_prepared_is_refused(tmp_path):
    text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING A SCRIPT"
    with pytest.raises(DataError, match=r"prepare\.py"):
        load(tmp_path, {"turns": [text], "category": "qa"})
    with pytest.raises(DataError, match=r"prepare\.py"):
        load(tmp_path, {"messages": [{"role": "user", "content": text}]})


def test_a_conversation_with_its_answers_is_one_request(tmp_path):
    roles = ("system", "user", "assistant", "user")
    said = [{"role": role, "content": role} for role in roles]
    (session,) = load(tmp_path, {"messages": said, "tools": [{"type": "function"}]})
    assert len(session.turns) == 1
    assert session.turns[0].body == {"tools": [{"type": "function"}]}


def test_sharegpt(tmp_path):
    parts = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
             {"from": "human", "value": "c"}]  # fmt: skip
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"id": "x", "conversations": parts}]))
    (session,) = load_sessions(str(path))
    assert contents(session) == [["a"], ["c"]]


def test_random_tokens():
    sessions = load_sessions("random:16:32", count=5, seed=3)
    assert len(sessions) == 5
    body = sessions[0].turns[0].body
    assert (len(body["prompt"]), body["max_tokens"], body["ignore_eos"]) == (16, 32, True)
    assert sessions[0].turns[0].path == COMPLETIONS
    assert sessions == load_sessions("random:16:32", count=5, seed=3)
    with pytest.raises(DataError, match="random:INPUT:OUTPUT"):
        load_sessions("random:16")


@pytest.mark.parametrize("name", list_own_sets())
def test_our_own_sets(name):
    sessions = load_sessions(name)
    assert len({session.id for session in sessions}) == len(sessions)
    assert all(session.category for session in sessions)


@pytest.mark.parametrize(
    ("rows", "says"), [([{"prompt": "a"}], "a row needs one of"), ([3], "not an object")]
)
def test_invalid_data_sets_are_refused(tmp_path, rows, says):
    with pytest.raises(DataError, match=says):
        load(tmp_path, *rows)


def test_so_are_those_of_a_prepared_one(tmp_path):
    said = [{"role": "user", "content": text} for text in ("first", "second")]
    (session,) = load(tmp_path, {"question_id": "q1", "category": "math", "messages": said})
    assert contents(session) == [["first"], ["second"]]
