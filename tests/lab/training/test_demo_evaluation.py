"""Scoring, pooling and the evaluation's prompts; no engine is started."""

from __future__ import annotations

import json

import pytest

from eaglegate.lab.training.corpus import sample_texts
from eaglegate.lab.training.data.turn import Call, Dialogue
from eaglegate.lab.training.draft_data import BadData, load_exchanges
from eaglegate.lab.training.evaluate import (
    Run,
    acceptance,
    behaviour_table,
    count_differences,
    lossless_table,
)
from eaglegate.lab.training.evaluation_set import (
    OPERATORS,
    all_cases,
    disturb_dialogue,
    make_alike_cases,
    make_grammar_cases,
    make_sum_cases,
)
from eaglegate.lab.training.generation import Answers
from eaglegate.lab.training.score import Score
from eaglegate.lab.training.tokenizer import train_tokenizer
from tests.lab.training.naming import words

WEATHER = Call("get_weather", {"city": "Oslo", "days": 2})


def called(*bodies):
    calls = "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    return f"<think>\nx\n</think>\n\n{calls}<|im_end|>"


def expect(*calls, answer=""):
    return Dialogue("tool_call", [{"role": "user", "content": "?"}], None, "x", answer, calls)


@pytest.mark.parametrize(
    ("text", "valid", "functions", "arguments", "exact"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}', 1, 1, 2, True),
        ('{"name": "get_weather", "arguments": {"city": "Oslo", "days": "2"}}', 1, 1, 1, False),
        ('{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}', 1, 0, 2, False),
        ('{"name": "get_weather", "arguments": {"city": "Oslo", "days": "2}}', 0, 0, 0, False),
        ('{"name": "get_weather"}', 0, 0, 0, False),
    ],
)
def test_a_call_is_scored_by_its_parts(text, valid, functions, arguments, exact):
    score = Score()
    assert score.add(expect(WEATHER), called(text), has_ended=True) is exact
    got = (score.valid_json, score.right_functions, score.right_arguments)
    assert got == (valid, functions, arguments)
    assert score.arguments == 2 and score.num_exact == exact


def test_a_missing_parallel_call_counts_against_its_arguments():
    score = Score()
    one = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
    assert not score.add(expect(WEATHER, WEATHER), called(one), has_ended=True)
    assert (score.right_arguments, score.arguments, score.right_functions) == (2, 4, 0)


def test_plain_answers_are_compared_without_the_think_block():
    score = Score()
    assert score.add(expect(answer="Yes."), "<think>\nhm\n</think>\n\nYes.<|im_end|>", True)
    assert not score.add(expect(answer="Yes."), "<think>\nhm\n</think>\n\nNo.<|im_end|>", False)
    assert (score.num_asked, score.num_ended, score.num_thinking, score.num_exact) == (2, 1, 2, 1)
    assert (score + score).num_asked == 4


def test_constrained_answers_must_end_as_an_object():
    score, dialogue = (
        Score(),
        Dialogue("held", [{"role": "user", "content": "?"}], None, "", ""),
    )
    assert score.add(dialogue, '{"a": "b"}<|im_end|>', True)
    assert not score.add(dialogue, '{"a": "bbbbbb', False)
    assert not score.add(dialogue, '["a"]<|im_end|>', True)
    assert (score.num_asked, score.num_ended, score.num_exact) == (3, 2, 1)


def test_acceptance_is_pooled_over_the_parts_of_a_set():
    parts = [
        Answers("long/a", drafts=10, accepted=20, by_position=[10, 8, 2]),
        Answers("long/b", drafts=30, accepted=20, by_position=[15, 5, 0]),
        Answers("sums/a", drafts=4, accepted=0, by_position=[0, 0, 0]),
    ]
    pooled = acceptance(Run("eagle3", 3, parts))
    assert pooled["long"].length == 2.0
    assert pooled["long"].by_position == (25, 13, 2)
    assert pooled["sums"].length == 1.0


def test_changed_answers_are_counted():
    base = [Answers("a/b", [[1, 2], [3]]), Answers("a/c", [[4]])]
    run = Run("eagle3", 3, [Answers("a/b", [[1, 2], [5]]), Answers("a/c", [[4]])])
    assert count_differences(base, run) == (1, 3)
    assert "1 of 3" in lossless_table(base, [run])


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(sample_texts(11, 300))


def test_the_evaluation_set_is_the_same_twice_and_in_every_group(tokenizer):
    first, second = (all_cases(tokenizer, 0.05) for _ in range(2))
    texts = [case.prompt(tokenizer) for case in first]
    assert texts == [case.prompt(tokenizer) for case in second]
    groups = {"held-out", "perturbed", "long", "sums", "held", "alike"}
    assert {case.group for case in first} == groups
    other = all_cases(tokenizer, 0.05, seed=4)
    assert not set(texts) & {case.prompt(tokenizer) for case in other if case.group != "held"}
    assert all("arguments" not in text[-20:] for text in texts)


def test_a_call_among_names_alike_has_a_rival():
    rivals = 0
    for case in make_alike_cases(20):
        (asked,) = {call.name for call in case.conversation.calls}
        offered = {tool["function"]["name"]: tool for tool in case.conversation.tools}
        others = [tool["function"] for name, tool in offered.items() if name != asked]
        told = set().union(*(words(f"{f['name']} {f['description']}") for f in others))
        rivals += bool(words(asked) & told)
    assert rivals >= 18


def test_a_held_prompt_has_a_schema_and_no_thought_to_write(tokenizer):
    for case in make_grammar_cases(20):
        prompt = case.prompt(tokenizer)
        schema = json.loads(case.schema)
        assert prompt.endswith("<think>\n\n</think>\n\n")
        assert schema["required"] == list(schema["properties"]) and schema["required"]
    assert all(case.schema is None for case in make_sum_cases(1))


def test_every_sum_asked_is_in_range_and_right():
    for case in make_sum_cases(10):
        a, operator, b, _, result = case.conversation.answer.rstrip(".").split()
        assert OPERATORS[operator](int(a), int(b)) == int(result)
        assert operator != "/" or int(a) == int(b) * int(result)


def test_five_ways_to_disturb_a_prompt(tokenizer):
    made = Dialogue("topic", [{"role": "user", "content": "Hi"}], None, "x", "Hello")
    plain = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    cases = [disturb_dialogue(made, i) for i in range(5)]
    assert len({case.part for case in cases}) == 5
    texts = [case.prompt(tokenizer) for case in cases]
    assert all("Hi" in text and text != plain for text in texts)
    assert ">>>\nHi\n<<< END OF QUERY <<<" in texts[3]


def test_table_names_every_kind_and_the_total():
    score = Score(num_asked=3, num_ended=3, num_exact=2)
    shown = behaviour_table({"held-out": {"topic": score}})
    assert "| held-out | topic | 3 | 3 | 2 |" in shown
    assert "| held-out | all | 3 | 3 | 2 |" in shown


def test_exchanges_come_in_three_forms(tmp_path, tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]
    rows = [
        {"prompt_ids": [1, 2], "answer_ids": [3, 4, 5]},
        {"prompt": "What is 1 + 1?", "answer": "1 + 1 = 2.<|im_end|>"},
        {"messages": messages},
        {"prompt_ids": [1], "answer_ids": [2]},
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    corpus = load_exchanges(file, tokenizer, 100)
    assert len(corpus.lengths) == 3, "the last answer is too short to be judged"
    start, end = corpus.offsets[2], corpus.offsets[3]
    marked = corpus.ids[start:end][corpus.weights[start:end] > 0]
    assert tokenizer.decode(marked) == "Hello there<|im_end|>\n"
    with pytest.raises(BadData, match="no exchange fits"):
        load_exchanges(file, tokenizer, 2)
