"""One rule for fields: what is unknown is ignored, named in a header and counted."""

from __future__ import annotations

import pytest

from eaglegate.engine.events import Observer

HEADER = "x-eaglegate-ignored-fields"
USER = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": USER},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Counting(Observer):
    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[str, ...]]] = []

    def record_ignored_fields(self, api, names) -> None:
        self.told.append((api, tuple(names)))


@pytest.mark.parametrize("url", BODIES)
async def test_unknown_fields_are_ignored_aloud(lab, url):
    lab.says("x")
    lab.gateway.observer = observer = Counting()
    body = {"model": "demo", "provider": {"order": ["a"]}, "num_ctx": 4096} | BODIES[url]
    answer = await lab.post(url, body)
    assert answer.status == 200
    assert answer.headers[HEADER] == "provider, num_ctx"
    assert observer.told == [(url, ("provider", "num_ctx"))]
    plain = await lab.post(url, {"model": "demo"} | BODIES[url])
    assert HEADER not in plain.headers
    assert len(observer.told) == 1


@pytest.mark.parametrize("url", BODIES)
async def test_or_refused_where_the_operator_wants_that(lab, url):
    lab.says("x")
    lab.configure(unknown_fields="refuse")
    answer = await lab.post(url, {"model": "demo", "num_ctx": 1} | BODIES[url])
    assert answer.status == 400
    assert "Unrecognized request argument supplied: num_ctx" in answer.json["error"]["message"]
    assert (await lab.post(url, {"model": "demo"} | BODIES[url])).status == 200


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": [TOOL | {"cache_control": {"type": "ephemeral"}}]}, "tools[].cache_control"),
        ({"tools": [{"type": "function", "function": {"name": name, "x": 1}} for name in "abc"]},
         "tools[].function.x"),
        ({"stream": True, "stream_options": {"include_usage": True, "x": 1}}, "stream_options.x"),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "x": 1}}},
         "response_format.json_schema.x"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}, "x": 1}},
         "tool_choice.x"),
        ({"structured_outputs": {"regex": "a", "x": 1}}, "structured_outputs.x"),
    ],
)  # fmt: skip
async def test_fields_within_fields(lab, fields, path):
    lab.says("x")
    answer = await lab.chat(**fields)
    assert (answer.status, answer.headers[HEADER]) == (200, path)
    lab.configure(unknown_fields="refuse")
    answer = await lab.chat(**fields)
    assert (answer.status, answer.json["error"]["param"]) == (400, path)


async def test_the_header_is_bounded_and_clean(lab):
    lab.says("x")
    names = {f"field_{at}": at for at in range(500)}
    answer = await lab.chat(**names, **{"a\r\nset-cookie: b": 1, "ü" * 300: 2})
    header = answer.headers[HEADER]
    assert answer.status == 200
    assert len(header) < 600
    assert "\r" not in header
    assert header.isascii()
    assert header.endswith("and 486 more")
    assert "set-cookie" not in answer.headers
    answer = await lab.chat(**{"a\r\nset-cookie: b": 1, "ü" * 300: 2})
    assert answer.headers[HEADER] == "a__set-cookie__b, " + "_" * 64


@pytest.mark.parametrize("stream", [False, True])
async def test_streams_and_errors_tell_it_too(lab, stream):
    lab.says("x")
    assert (await lab.chat(stream=stream, seeed=1)).headers[HEADER] == "seeed"
    answer = await lab.chat(stream=stream, seeed=1, model="nope")
    assert (answer.status, answer.headers[HEADER]) == (404, "seeed")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": "0.5", "top_p": "0.9", "max_tokens": "7", "seed": "3", "n": "1"},
        {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7.0, "seed": 3.0, "stream": "false"},
    ],
)
async def test_numbers_and_switches_may_come_as_text(lab, fields):
    lab.says("x")
    assert (await lab.chat(**fields)).status == 200
    sampling = lab.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)
    assert (sampling.max_tokens, sampling.seed) == (7, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 7.5), ("max_tokens", "many"), ("temperature", "hot"), ("temperature", "nan"),
     ("temperature", True), ("max_tokens", True), ("stream", "perhaps"), ("stream", 2),
     ("user", 7)],
)  # fmt: skip
async def test_lossy_conversions_of_values_are_refused(lab, name, value):
    answer = await lab.chat(**{name: value})
    assert (answer.status, answer.json["error"]["param"]) == (400, name)


async def test_an_object_is_called_so_in_errors(lab):
    for field, value in (("response_format", 3), ("stream_options", "x"), ("metadata", [])):
        error = (await lab.chat(**{field: value})).json["error"]
        assert error["param"] == field
        assert "an object" in error["message"]
        assert "dictionary" not in error["message"]
