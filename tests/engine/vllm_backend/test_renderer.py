import pytest

from engine.vllm_backend.arguments import make_demo_arguments
from engine.vllm_backend.renderer import VllmRenderer

QUESTION = [{"role": "user", "content": "Hi, \u00fcber-\u6f22!"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def renderer() -> VllmRenderer:
    return VllmRenderer(make_demo_arguments())


def test_messages_follow_the_models_template(renderer: VllmRenderer) -> None:
    text = renderer.decode(renderer.render_chat(QUESTION, None))
    assert text == ("<|im_start|>user\nHi, \u00fcber-\u6f22!<|im_end|>\n<|im_start|>assistant\n")


def test_tools_and_template_arguments_reach_the_template(renderer: VllmRenderer) -> None:
    thoughtless = {"enable_thinking": False}
    text = renderer.decode(renderer.render_chat(QUESTION, [TOOL], chat_template_kwargs=thoughtless))
    assert "get_weather(city: string?) The weather" in text or "get_weather(" in text
    assert text.endswith("<think>\n\n</think>\n\n")


def test_an_answer_can_be_continued(renderer: VllmRenderer) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Well, hel"}]
    ids = renderer.render_chat(
        messages, None, add_generation_prompt=False, continue_final_message=True
    )
    assert renderer.decode(ids).endswith("Well, hel")


def test_past_tool_calls_are_rendered(renderer: VllmRenderer) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    text = renderer.decode(renderer.render_chat(messages, [TOOL]))
    assert '"Rome"' in text
    assert "<|im_start|>tool\nsunny<|im_end|>" in text


def test_a_template_of_the_users_own() -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    renderer = VllmRenderer(make_demo_arguments(), chat_template=template)
    assert renderer.decode(renderer.render_chat(QUESTION, None)) == "[Hi, \u00fcber-\u6f22!]"


def test_a_refusal_of_the_template_is_a_value_error() -> None:
    template = "{{ raise_exception('only one question at a time') }}"
    renderer = VllmRenderer(make_demo_arguments(), chat_template=template)
    with pytest.raises(ValueError, match="only one question at a time"):
        renderer.render_chat(QUESTION, None)


def test_text_and_tokens_and_back(renderer: VllmRenderer) -> None:
    text = "A cat,\n\u00fc\u6f22 <think>"
    assert renderer.decode(renderer.encode(text, add_special_tokens=False)) == text


DEVELOPER = [{"role": "developer", "content": "Be brief."}, *QUESTION]
ROLES = "{% for m in messages %}<{{ m.role }}>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (ROLES, "<system><user>"),
        (ROLES + "{# 'developer' #}{{ '' if 'developer' else '' }}", "<developer><user>"),
    ],
)
def test_a_template_that_knows_the_developer_role_sees_it(template: str, expected: str) -> None:
    renderer = VllmRenderer(make_demo_arguments(), chat_template=template)
    assert renderer.decode(renderer.render_chat(DEVELOPER, None)) == expected


def test_a_renderer_without_the_developer_role_gets_it_as_system(renderer: VllmRenderer) -> None:
    class MistralRenderer:
        def render_chat(self, conversations, params, *more):
            self.roles = [message["role"] for message in conversations[0]]
            return None, [{"prompt_token_ids": [1]}]

    other = object.__new__(VllmRenderer)
    other.__dict__ |= renderer.__dict__ | {"_renderer": MistralRenderer()}
    other._reads_developer = other._templated = False
    other.render_chat(DEVELOPER, None)
    assert other._renderer.roles == ["system", "user"]
