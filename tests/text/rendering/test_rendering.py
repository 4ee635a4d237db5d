"""Prompts without vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eaglegate.text.rendering.renderer import (
    MODEL_JSON,
    TOKENIZER_JSON,
    ModelFiles,
    TemplateRenderer,
    UnsupportedModel,
)
from tests.text.rendering.conversations import IMAGES, IN_PARTS, OPEN, TALKS, TEMPLATES, TOOL, user

DEMO = "engine/demo/target"


@pytest.fixture(scope="module")
def renderer():
    return TemplateRenderer(ModelFiles.find(DEMO, None, None))


def text_of(renderer, *arguments, **options):
    return renderer.decode(renderer.render_chat(*arguments, **options))


def test_the_demo(renderer):
    text = text_of(renderer, [user("Hi")], None)
    assert text.startswith("<|im_start|>user\nHi<|im_end|>")
    assert text.endswith("<|im_start|>assistant\n")


def test_variables_reach_the_template_and_ours_do_not_change(renderer):
    thoughtless = {"enable_thinking": False, "messages": [], "add_generation_prompt": False}
    text = text_of(renderer, [user("Hi")], [TOOL], chat_template_kwargs=thoughtless)
    assert "get_weather" in text
    assert "Hi" in text
    assert text != text_of(renderer, [user("Hi")], [TOOL])
    assert "<|im_start|>assistant" in text


def test_an_open_message_stays_open(renderer):
    text = text_of(
        renderer, OPEN["open"], None, add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("one, two, ")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|access"),
    ],
)
def test_templates_refuse_and_are_held(template, reason):
    renderer = TemplateRenderer(ModelFiles.find(DEMO, None, None), template)
    with pytest.raises(ValueError, match=reason):
        renderer.render_chat([user("Hi")], None)


def test_a_template_that_is_none_is_said_at_once():
    with pytest.raises(ValueError, match="cannot be read"):
        TemplateRenderer(ModelFiles.find(DEMO, None, None), "{% for %}")


IMAGE = {"type": "image"}


def part(text):
    return {"type": "text", "text": text}


def test_a_template_writes_a_placeholder_for_each_image_in_order():
    renderer = TemplateRenderer(ModelFiles.find(DEMO, None, None), IMAGES)
    messages = [
        {"role": "system", "content": "Look."},
        user([part("a"), IMAGE, part("b"), IMAGE]),
        {"role": "tool", "tool_call_id": "c", "content": [IMAGE, part("seen")]},
    ]
    token_ids = renderer.render_chat(messages, None)
    assert renderer.decode(token_ids) == "system: Look.;user: a<pad>b<pad>;tool: <pad>seen;"
    assert token_ids.count(renderer.tokenizer.token_to_id("<pad>")) == 3
    renderer._plain.is_suspect = True  # in the child
    assert renderer.render_chat(messages, None) == token_ids


def test_a_template_of_text_refuses_images():
    renderer = TemplateRenderer(ModelFiles.find(DEMO, None, None), TEMPLATES["knows developer"])
    with pytest.raises(ValueError, match="as one text, in which images have no place"):
        renderer.render_chat([user([part("a"), IMAGE])], None)


def test_instructions_have_no_images():
    renderer = TemplateRenderer(ModelFiles.find(DEMO, None, None), IMAGES)
    with pytest.raises(ValueError, match="'system' cannot have images"):
        renderer.render_chat([{"role": "system", "content": [IMAGE]}, user("a")], None)


def test_images_are_refused(renderer):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(ValueError, match="image_url"):
        renderer.render_chat([user([image])], None)


def folder(path: Path, config: dict | None = None, **files: object) -> str:
    demo = Path(DEMO)
    (path / "config.json").write_text(json.dumps(config or {"vocab_size": 7}))
    (path / "tokenizer.json").write_bytes((demo / "tokenizer.json").read_bytes())
    for name, content in files.items():
        (path / name.replace("_json", ".json")).write_text(json.dumps(content))
    return str(path)


def test_templates_with_names(tmp_path):
    templates = [
        {"name": "default", "template": "plain {{ bos_token }}"},
        {"name": "tool_use", "template": "with tools"},
    ]
    bos = {"content": "<s>", "lstrip": False}
    model = folder(tmp_path, tokenizer_config_json={"chat_template": templates, "bos_token": bos})
    renderer = TemplateRenderer(ModelFiles.find(model, None, None))
    assert text_of(renderer, [user("Hi")], None) == "plain <s>"
    assert text_of(renderer, [user("Hi")], [TOOL]) == "with tools"


def test_limits_and_defaults_are_read_from_the_config(tmp_path):
    config = {"text_config": {"vocab_size": 9, "max_position_embeddings": 64}}
    model = folder(tmp_path, config, generation_config_json={"top_k": 3, "max_new_tokens": 5})
    files = ModelFiles.find(model, None, None)
    assert (files.vocab_size, files.max_model_len) == (9, 64)
    assert files.default_sampling == {"top_k": 3, "max_tokens": 5}
    with pytest.raises(ValueError, match="--chat-template"):
        TemplateRenderer(files).render_chat([user("Hi")], None)


def test_models_no_template_makes_prompts_for(tmp_path):
    model = folder(tmp_path, {"model_type": "gpt_oss"})
    with pytest.raises(UnsupportedModel, match="Harmony"):
        ModelFiles.find(model, None, None)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json"):
        ModelFiles.find(model, None, None)


@pytest.mark.parametrize("name", [*MODEL_JSON, *TOKENIZER_JSON])
@pytest.mark.parametrize(
    ("content", "words"), [("[" * 5000, "is nested too deeply"), ("{", "is not JSON")]
)
def test_json_files_that_cannot_be_read_are_named(tmp_path, name, content, words):
    model = folder(tmp_path, {})
    (tmp_path / name).write_text(content)
    with pytest.raises(UnsupportedModel, match=f"{name} {words}"):
        ModelFiles.find(model, None, None)


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path):
    files = ModelFiles.find(folder(tmp_path, {}), None, None)
    for content in ("[" * 5000, "{", '{"model": 1}'):
        files.tokenizer_json.write_text(content)
        with pytest.raises(UnsupportedModel, match=r"tokenizer\.json cannot be read"):
            TemplateRenderer(files)


def test_parts_stay_parts_for_templates_that_walk_over_them():
    renderer = TemplateRenderer(ModelFiles.find(DEMO, None, None), IN_PARTS)
    assert "[text]one[text]two" in text_of(renderer, TALKS["parts"], None)


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_same_tokens_as_vllms_renderer(template, tmp_path):
    from eaglegate.engine.vllm_backend.arguments import make_demo_arguments
    from eaglegate.engine.vllm_backend.renderer import VllmRenderer

    given = TEMPLATES[template]
    if given is not None:
        (tmp_path / "own.jinja").write_text(given)
        given = str(tmp_path / "own.jinja")
    here = VllmRenderer(make_demo_arguments(), given)
    theirs = VllmRenderer(make_demo_arguments(), given)
    theirs._writes = lambda *_: False
    ours = TemplateRenderer(ModelFiles.find(DEMO, None, None), given)
    prompts = Path("tests/e2e/prompts.jsonl").read_text("utf-8").splitlines()
    asked = [(entry["messages"], entry.get("tools"), {}) for entry in map(json.loads, prompts)]
    for name, talk in TALKS.items():
        tools = [TOOL] if "tool" in name else None
        asked += [
            (talk, tools, {}),
            (talk, tools, {"add_generation_prompt": False}),
            (talk, tools, {"chat_template_kwargs": {"enable_thinking": False, "mood": "gay"}}),
        ]
        if "tool" not in name:
            asked.append((talk, [TOOL, TOOL], {"chat_template_kwargs": {"enable_thinking": True}}))
    go_on = {"add_generation_prompt": False, "continue_final_message": True}
    asked += [(talk, None, go_on) for talk in OPEN.values()]
    for messages, tools, options in asked:
        made = ours.render_chat(messages, tools, **options)
        wanted = theirs.render_chat(messages, tools, **options)
        assert ours.decode(made) == theirs.decode(wanted)
        assert made == wanted == here.render_chat(messages, tools, **options)
