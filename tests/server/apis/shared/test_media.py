"""Images and files: a placeholder in what was said before, a refusal in what is asked now."""

from __future__ import annotations

import pytest

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
TEXT = {"type": "text", "text": "what is this?"}
OMITTED = "[image omitted: this model reads text only]"
HEADER = "x-eaglegate-ignored-fields"


@pytest.fixture(autouse=True)
def speaks(lab) -> None:
    lab.says("x")


def seen(lab) -> list[str]:
    return [message["content"] for message in lab.renderer.seen[-1]["messages"]]


EARLIER = [
    {"role": "user", "content": [TEXT, IMAGE]},
    {"role": "assistant", "content": "a cat"},
    {"role": "user", "content": "and now?"},
]


async def test_an_image_in_the_history_of_a_chat(lab):
    answer = await lab.chat(messages=EARLIER)
    assert answer.status == 200
    assert seen(lab)[0] == f"what is this?\n{OMITTED}"
    assert answer.headers[HEADER] == "messages[].content[image_url]"
    body = {"messages": EARLIER}
    assert (await lab.post("/tokenize", body)).status == 200
    lab.change_model(replaces_media=False)
    answer = await lab.chat(messages=EARLIER)
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages[0].content[1]")


async def test_an_image_that_is_asked_about_now(lab):
    for said in ([EARLIER[0]], [*EARLIER, {"role": "user", "content": [IMAGE]}]):
        answer = await lab.chat(messages=said)
        assert answer.status == 400
        assert answer.json["error"]["param"].startswith(f"messages[{len(said) - 1}].content[")
        assert "reads text only" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": "A"}}, "file"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
        ({"type": "hologram\r\n]", "x": 1}, "hologram"),
    ],
)
async def test_other_kinds(lab, part, name):
    result = {"role": "tool", "tool_call_id": "c", "content": [part]}
    assert (await lab.chat(messages=[{"role": "user", "content": "a"}, result])).status == 200
    assert seen(lab)[-1] == f"[{name} omitted: this model reads text only]"


async def test_text_by_other_names_is_text(lab):
    parts = ["a ", {"type": "input_text", "text": "b "}, {"type": "output_text", "text": "c"}]
    assert (await lab.chat(messages=[{"role": "user", "content": parts}])).status == 200
    assert seen(lab) == [[{"type": "text", "text": text} for text in ("a ", "b ", "c")]]


async def ask(lab, messages, url="/v1/messages"):
    fields = {"max_tokens": 9} if url == "/v1/messages" else {}
    return await lab.post(url, {"messages": messages} | fields)


def result(*content):
    return {"type": "tool_result", "tool_use_id": "t", "content": list(content)}


USE = {"type": "tool_use", "id": "t", "name": "read", "input": {}}


@pytest.mark.parametrize("url", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_an_image_that_a_tool_has_read(lab, url):
    """Claude Code sends such an image, once in the newest message and then in every later
    request."""
    said = [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [result(TEXT, BLOCK)]},
    ]
    assert (await ask(lab, said, url)).status == 200
    assert seen(lab)[-1] == f"what is this?\n{OMITTED}"
    lab.change_model(replaces_media=False)
    answer = await ask(lab, said, url)
    assert answer.status == 400
    assert "messages[2].content[0].content[1]" in answer.json["error"]["message"]


async def test_an_image_of_the_user_s(lab):
    said = [
        {"role": "user", "content": [TEXT, BLOCK]},
        {"role": "assistant", "content": [{"type": "text", "text": "a cat"}, BLOCK]},
        {"role": "user", "content": "and now?"},
    ]
    assert (await ask(lab, said)).status == 200
    assert seen(lab) == [f"what is this?\n{OMITTED}", f"a cat\n{OMITTED}", "and now?"]
    answer = await ask(lab, said[:1])
    assert answer.status == 400
    assert "messages[0].content[1]" in answer.json["error"]["message"]


async def test_hosted_tool_blocks_of_the_history_become_notes(lab):
    said = [
        {"role": "user", "content": "search"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "found"},
        ]},
        {"role": "user", "content": "and?"},
    ]  # fmt: skip
    assert (await ask(lab, said)).status == 200
    assert seen(lab)[1].splitlines() == [
        "[server_tool_use omitted: this model reads text only]",
        "[web_search_tool_result omitted: this model reads text only]",
        "found",
    ]


async def test_documents_of_text_are_text(lab):
    plain = {"type": "text", "media_type": "text/plain", "data": "once upon a time"}
    blocks = {"type": "content", "content": [{"type": "text", "text": "the end"}]}
    found = {"type": "search_result", "source": "https://x", "title": "S",
             "content": [{"type": "text", "text": "hit"}]}  # fmt: skip
    said = [{"role": "user", "content": [
        {"type": "document", "source": plain, "title": "Tale"},
        {"type": "document", "source": blocks}, found, TEXT,
    ]}]  # fmt: skip
    assert (await ask(lab, said)).status == 200
    assert seen(lab)[0] == "Tale\nonce upon a time\nthe end\nS\nhttps://x\nhit\nwhat is this?"
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}
    assert (await ask(lab, [{"role": "user", "content": [pdf]}])).status == 400


async def test_an_image_in_the_history_of_a_response(lab):
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "what is this?"}, image]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image]},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": "and now?"},
    ]
    answer = await lab.post("/v1/responses", {"input": said})
    assert answer.status == 200
    assert seen(lab)[0] == f"what is this?\n{OMITTED}"
    assert seen(lab)[2] == OMITTED
    answer = await lab.post("/v1/responses", {"input": said[:1]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].content[1]")
